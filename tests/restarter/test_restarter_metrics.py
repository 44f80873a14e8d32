"""The restarter's own metrics: their names, their initial values, and their text format."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpufrag.metrics import TABLE
from gpufrag.metrics.exposition import write
from gpufrag.restarter import metrics
from gpufrag.restarter.backend import Away, Conflict, Denied, Invalid, NotFound, TooMany
from gpufrag.restarter.metrics import BOUNDS_S, COUNTER, ROWS, Metrics
from gpufrag.restarter.reasons import DAILY_BUDGET, REASONS, Refused

CIRCUIT = "gpufrag_restarter_circuit_open[]"


def busy() -> Metrics:
    """Return metrics with a value in every row."""
    made = Metrics()
    for row in ROWS:
        if row.kind == COUNTER:
            made.count(row, *(f'odd "{label}"\n' for label in row.labels))
        elif row.kind == metrics.HISTOGRAM:
            made.observe(row, 7.0)
        else:
            made.set(row, 1.0)
    return made


def samples(values: Metrics) -> dict[str, float]:
    text = write(values)[1].decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name + str(sorted(sample.labels.items())): sample.value for sample in found}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_metric_has_a_valid_name_and_help(row):
    assert re.fullmatch(r"gpufrag_restarter_[a-z_]+", row.name)
    assert row.name.endswith("_total") == (row.kind == COUNTER)
    assert row.help.endswith(".")


def test_metric_names_are_unique():
    names = [row.name for row in (*ROWS, *TABLE)]
    assert len(set(names)) == len(names)


def test_unknown_value_is_absent():
    found = samples(Metrics())
    assert all(found[f"gpufrag_restarter_refused_total[('reason', '{reason.label}')]"] == 0 for reason in REASONS)
    assert not [name for name in found if "last_success" in name or name == CIRCUIT]
    values = busy()
    values.set(metrics.CIRCUIT_OPEN, None)
    assert CIRCUIT not in samples(values)


def test_histogram_counts_up_to_its_bounds():
    values = Metrics()
    for seconds in (0.5, 5.0, 1000.0):
        values.observe(metrics.CHECKPOINT, seconds)
    found = samples(values)
    buckets = [value for name, value in found.items() if name.startswith("gpufrag_restarter_checkpoint_seconds_bucket")]
    assert len(buckets) == len(BOUNDS_S)
    assert buckets[:2] == [1, 2]
    assert buckets[-1] == found["gpufrag_restarter_checkpoint_seconds_count[]"] == 3
    assert found["gpufrag_restarter_checkpoint_seconds_sum[]"] == 1005.5


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_any_label_value_is_escaped(accept):
    assert rb"odd \"reason\"\n" in write(busy(), accept)[1]


@pytest.mark.real
def test_promtool_accepts_the_metrics():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool command: apt-get install prometheus")
    done = subprocess.run([promtool, "check", "metrics"], input=write(busy())[1], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.label)
def test_reason_has_a_label_a_text_and_a_remedy(reason):
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", reason.label)
    assert reason.text
    assert reason.remedy
    assert not (reason.text + reason.remedy).endswith(".")
    assert [one.label for one in REASONS].count(reason.label) == 1


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (Conflict("x"), "conflict"),
        (NotFound("x"), "job-gone"),
        (Denied("x"), "forbidden"),
        (Invalid("x"), "invalid-request"),
        (TooMany("x"), "backend-unavailable"),
        (Away("x"), "backend-unavailable"),
    ],
)
def test_backend_error_gives_a_reason(error, label):
    assert error.refusal().reason.label == label


def test_refusal_shows_cause_and_remedy():
    text = str(Refused(DAILY_BUDGET, "4 of 4"))
    assert text.startswith("the job has used its restarts of the last 24 hours (4 of 4); fix the cause")
