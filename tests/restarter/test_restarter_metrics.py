"""The restarter's own metrics: named and told well, there from the start, and rendered whatever is in a label."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpufrag.metrics import TABLE
from gpufrag.metrics.exposition import write
from gpufrag.restarter import metrics
from gpufrag.restarter.metrics import BOUNDS_S, COUNTER, ROWS, Metrics, Row
from gpufrag.restarter.reasons import REASONS

CIRCUIT = "gpufrag_restarter_circuit_open[]"


def busy() -> Metrics:
    """With a value in every row."""
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
def test_a_row_is_well_named_and_told(row: Row) -> None:
    assert re.fullmatch(r"gpufrag_restarter_[a-z_]+", row.name)
    assert row.name.endswith("_total") == (row.kind == COUNTER)
    assert row.help.endswith(".")


def test_no_name_is_given_twice() -> None:
    names = [row.name for row in (*ROWS, *TABLE)]
    assert len(set(names)) == len(names)


def test_every_reason_is_there_from_the_start() -> None:
    found = samples(Metrics())
    for reason in REASONS:
        assert found[f"gpufrag_restarter_refused_total[('reason', '{reason.label}')]"] == 0


def test_what_is_not_known_is_absent() -> None:
    assert not [name for name in samples(Metrics()) if "last_success" in name or name == CIRCUIT]
    values = busy()
    values.set(metrics.CIRCUIT_OPEN, None)
    assert CIRCUIT not in samples(values)


def test_a_histogram_counts_up_to_its_bounds() -> None:
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
def test_any_value_of_a_label_is_rendered(accept: str) -> None:
    assert rb"odd \"reason\"\n" in write(busy(), accept)[1]


@pytest.mark.real
def test_promtool_has_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool command: apt-get install prometheus")
    done = subprocess.run([promtool, "check", "metrics"], input=write(busy())[1], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
