"""The recorded figures of a job of two ranks, beside the same by hand."""

from collections.abc import Mapping

import pytest

from gpufrag.mixin import recording
from promtool import GIB, device

OTHER = {"rank": "1", "pod": "llm-1", "instance": "10.0.0.2:9836"}
PARTS = {
    "free_total": (40, 20),
    "largest_allocatable": (10, 20),
}
PER_POOL = {
    # name: (rank 0 large, rank 0 small, rank 1 large, rank 1 small), GiB
    "allocated": (29, 1, 50, 0),
    "reserved": (38, 2, 60, 0),
}
AT_THE_PEAK = {
    "free_cached": (90, 1, 1, 0),
    "largest_free_block": (1, 1, 1, 0),
    "stranded": (5, 1, 2, 0),
}
AT_THE_BOUNDARY = {
    "free_cached": (9, 1, 10, 0),
    "largest_free_block": (2, 1, 10, 0),
    "stranded": (1, 1, 7, 0),
}


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
    recording.JOB_ACTIONABLE: 4,  # rank 1 has but 2 % free
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


def asked(values: Mapping[str, float]) -> list[dict[str, object]]:
    """Rounded, for promtool compares to the last bit."""
    return [
        {
            "expr": f"sum(round({expr}, 0.0001))",
            "eval_time": "5m",
            "exp_samples": [{"labels": "{}", "value": round(value * 10000) / 10000}],
        }
        for expr, value in values.items()
    ]


def beside(framework: str, **figures: float) -> list[dict[str, str]]:
    """What a second framework tells in the process of rank 0, in GiB."""
    return [device(f"gpufrag_allocator_{n}_bytes", GIB * v, framework=framework) for n, v in figures.items()]


@pytest.mark.real
def test_recorded_figures_are_those_by_hand(judge):
    judge.ask({"input_series": job(), "promql_expr_test": asked(VALUES)})


@pytest.mark.real
def test_what_a_second_framework_tells_by_half_is_in_no_quotient(judge):
    half = beside("tensorflow", allocated=500, peak_active=500)
    values = {name: VALUES[name] for name in (recording.JOB_UNUSED, recording.JOB_PEAK)}
    judge.ask({"input_series": [*job(), *half], "promql_expr_test": asked(values)})


@pytest.mark.real
def test_what_a_second_framework_tells_in_full_counts(judge):
    full = beside("jax", allocated=40, reserved=60, peak_active=36, peak_reserved=60)
    values = {recording.JOB_UNUSED: 1 - 120 / 160, recording.JOB_PEAK: 1 - 122 / 160}
    judge.ask({"input_series": [*job(), *full], "promql_expr_test": asked(values)})


def test_every_recorded_rule_is_looked_at():
    names = {value for name, value in vars(recording).items() if name.startswith(("RANK_", "JOB_"))}
    assert {name for name in names if not any(name in expr for expr in VALUES)} == set()


@pytest.mark.real
def test_a_job_keeps_only_the_labels_that_name_it(judge):
    labels = '{__name__="job:gpufrag_fragmentation:max_ratio", job="gpufrag", job_name="llm", namespace="ml"}'
    expected = [{"labels": labels, "value": 4}]
    test = {"expr": recording.JOB_FRAGMENTATION, "eval_time": "5m", "exp_samples": expected}
    judge.ask({"input_series": job(), "promql_expr_test": [test]})


@pytest.mark.real
def test_a_missed_scrape_loses_no_rank(judge):
    blinking = device("gpufrag_up", " ".join(["1 stale"] * 30), **{**OTHER, "device": ""})
    series = [device("gpufrag_up", 1, device=""), blinking]
    expected = [{"labels": '{job="gpufrag", job_name="llm", namespace="ml"}', "value": 2}]
    test = {"expr": f"min_over_time({recording.JOB_RANKS}[5m])", "eval_time": "10m", "exp_samples": expected}
    judge.ask({"input_series": series, "promql_expr_test": [test]})
