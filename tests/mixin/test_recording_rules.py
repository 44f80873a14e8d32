"""The recorded figures of a job with two ranks, compared with values computed by hand."""

from collections.abc import Mapping

import pytest

from gpufrag.mixin import recording
from gpufrag.mixin.config import Config
from promtool import GIB, device

OTHER = {"rank": "1", "pod": "llm-1", "instance": "10.0.0.2:9836"}
PARTS = {"free_total": (40, 20), "largest_allocatable": (10, 20)}
PER_POOL = {
    # name: (rank 0 large, rank 0 small, rank 1 large, rank 1 small), GiB
    "allocated": (29, 1, 50, 0),
    "reserved": (38, 2, 60, 0),
}
AT_THE_PEAK = {"free_cached": (90, 1, 1, 0), "largest_free_block": (1, 1, 1, 0), "stranded": (5, 1, 2, 0)}
AT_THE_BOUNDARY = {"free_cached": (9, 1, 10, 0), "largest_free_block": (2, 1, 10, 0), "stranded": (1, 1, 7, 0)}


def job() -> list[dict[str, str]]:
    lines = [
        device(f"gpufrag_allocator_{name}_bytes", GIB * value, at="peak", **who)
        for name, values in PARTS.items()
        for value, who in zip(values, ({}, OTHER))
    ]
    for at, group in ((None, PER_POOL), ("peak", AT_THE_PEAK), ("boundary", AT_THE_BOUNDARY)):
        for name, values in group.items():
            for value, (who, pool) in zip(values, [(who, pool) for who in ({}, OTHER) for pool in ("large", "small")]):
                labels = {"pool": pool, "at": at or "", **who}
                lines.append(device(f"gpufrag_allocator_{name}_bytes", GIB * value, **labels))
    for who, limit, active, reserved in (({}, 80, 36, 40), (OTHER, 1000, 50, 60)):
        lines.append(device("gpufrag_allocator_limit_bytes", GIB * limit, **who))
        lines.append(device("gpufrag_allocator_peak_active_bytes", GIB * active, **who))
        lines.append(device("gpufrag_allocator_peak_reserved_bytes", GIB * reserved, **who))
    lines.append(device("gpufrag_leak_bytes_per_step", GIB / 64))
    lines.append(device("gpufrag_steps_total", "0+60x120", device=""))
    lines += [device("gpufrag_up", 1, device=""), device("gpufrag_up", 1, **{**OTHER, "device": ""})]
    return lines


VALUES = {
    f'{recording.RANK_FRAGMENTATION}{{rank="0"}}': 4,
    recording.RANK_WORST: 4,
    recording.RANK_LEFT: 40 / (2 / 64),  # two steps a second
    f'{recording.RANK_CACHE}{{rank="0"}}': 5,
    f'{recording.RANK_UNUSED}{{rank="0"}}': 0.25,
    f'{recording.RANK_PEAK}{{rank="0"}}': 0.1,
    recording.JOB_FRAGMENTATION: 4,
    recording.JOB_ACTIONABLE: 4,  # rank 1 has only 2 % free
    recording.JOB_FREE_SHARE: 0.02,
    recording.JOB_CACHE: 5,
    recording.JOB_UNUSED_WORST: 0.25,
    recording.JOB_PEAK_WORST: 1 - 50 / 60,
    recording.JOB_ALLOCATED: 80 * GIB,
    recording.JOB_RESERVED: 100 * GIB,
    recording.JOB_STRANDED: (6 + 7) * GIB,
    recording.JOB_UNUSED: 0.2,
    recording.JOB_PEAK: 1 - 86 / 100,
    recording.JOB_RANKS: 2,
}


def expected(values: Mapping[str, float]) -> list[dict[str, object]]:
    """Rounded, because promtool compares exactly."""
    return [
        {
            "expr": f"sum(round({expr}, 0.0001))",
            "eval_time": "5m",
            "exp_samples": [{"labels": "{}", "value": round(value * 10000) / 10000}],
        }
        for expr, value in values.items()
    ]


@pytest.mark.real
def test_recorded_figures_match_manual_computation(judge):
    judge.ask({"input_series": job(), "promql_expr_test": expected(VALUES)})


@pytest.mark.real
@pytest.mark.parametrize(
    ("figures", "unused", "peak"),
    [
        ({"allocated": 500, "peak_active": 500}, VALUES[recording.JOB_UNUSED], VALUES[recording.JOB_PEAK]),
        ({"allocated": 40, "reserved": 60, "peak_active": 36, "peak_reserved": 60}, 1 - 120 / 160, 1 - 122 / 160),
    ],
    ids=["partial figures are left out", "complete figures count"],
)
def test_quotients_with_second_framework(judge, figures, unused, peak):
    second = [device(f"gpufrag_allocator_{n}_bytes", GIB * v, framework="jax") for n, v in figures.items()]
    values = {recording.JOB_UNUSED: unused, recording.JOB_PEAK: peak}
    judge.ask({"input_series": [*job(), *second], "promql_expr_test": expected(values)})


def test_every_recording_rule_has_a_value_and_a_meaning():
    rules = [*recording.rank_rules(Config()), *recording.job_rules(Config())]
    assert {rule.record for rule in rules if rule.meaning} == {expr.partition("{")[0] for expr in VALUES}


@pytest.mark.real
def test_job_rule_has_only_job_labels(judge):
    labels = '{__name__="job:gpufrag_fragmentation:max_ratio", job="gpufrag", job_name="llm", namespace="ml"}'
    expected = [{"labels": labels, "value": 4}]
    test = {"expr": recording.JOB_FRAGMENTATION, "eval_time": "5m", "exp_samples": expected}
    judge.ask({"input_series": job(), "promql_expr_test": [test]})


@pytest.mark.real
def test_missed_scrape_does_not_reduce_rank_count(judge):
    flapping = device("gpufrag_up", " ".join(["1 stale"] * 30), **{**OTHER, "device": ""})
    series = [device("gpufrag_up", 1, device=""), flapping]
    expected = [{"labels": '{job="gpufrag", job_name="llm", namespace="ml"}', "value": 2}]
    test = {"expr": f"min_over_time({recording.JOB_RANKS}[5m])", "eval_time": "10m", "exp_samples": expected}
    judge.ask({"input_series": series, "promql_expr_test": [test]})
