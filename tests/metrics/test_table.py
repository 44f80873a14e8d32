"""The table of metrics: naming rules, the values of rows, and the page that lists them."""

import re
from dataclasses import replace

import pytest

from gpufrag.metrics import SECTIONS, TABLE, families, names
from gpufrag.metrics.table import COUNTER, HISTOGRAM, INFO, RATIO
from gpufrag.metrics.view import CollectorResult, DeviceView, Fleet, ProcessView, RankView, StepView
from gpufrag.mixin.config import Config
from gpufrag.mixin.rules import groups
from gpufrag.wire.sample import Leak, Ooms
from helpers import TESTS, kept_block

GIB = 1 << 30
PAGE = TESTS.parent / "docs" / "metrics.md"


def series_of(fleet, **options):
    return {(s.name, *sorted(s.labels.items())): s.value for f in families(fleet, **options) for s in f.samples}


def value_of(fleet, name, **labels):
    return series_of(fleet).get((name, *sorted(labels.items())))


def row_name(series):
    return re.sub("_(bucket|gcount|gsum)$", "", series[0])


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_row_follows_naming_rules(row):
    assert re.fullmatch(r"gpufrag_[a-z]+(_[a-z]+)*", row.name)
    assert row.name.endswith("_total") == (row.kind == COUNTER)
    assert row.name.endswith("_info") == (row.kind == INFO)
    assert row.help.endswith(".")
    assert row.help.isascii()
    assert not re.search(r"_ratio|percent|_[kmg]i?b(_|$)", row.name)


def test_table_lists_every_name_once():
    listed = [row.name for row in TABLE]
    constants = {value for key, value in vars(names).items() if key.isupper()}
    assert sorted(listed) == sorted(constants - {names.RESTARTER_CIRCUIT_OPEN})


def test_series_carry_only_declared_labels(fleet):
    declared = {row.name: {*row.labels, "process", *(["le"] if row.kind == HISTOGRAM else [])} for row in TABLE}
    for series in series_of(fleet):
        assert {label for label, _ in series[1:]} <= declared[row_name(series)]


def test_rank_without_detail_has_at_most_60_series(a_device, a_process):
    """With everything except a recorded step: two moments, a leak, an error, the driver's figures, its device."""
    device = replace(
        a_device("train-cap4", moments=("boundary", "peak")),
        leak=Leak("step", 2.5e6, 2e6, 3e6, 0, 99),
        ooms=Ooms(dict.fromkeys(("fragmentation", "capacity", "limit", "neighbours", "unknown"), 1), 1.0, 3 * GIB),
    )
    memory = {0: ProcessView("GPU-0", None, 4 * GIB, GIB)}
    gpu = DeviceView("GPU-0", 0, *5 * [GIB], name="A GPU", driver_version="580")
    rank = RankView(a_process(device, rank=0, steps=1), memory=memory)
    lean = series_of(Fleet(0.0, (rank,), (gpu,)), detail=False)
    assert 50 <= len([series for series in lean if {"rank", "uuid"} & dict(series[1:]).keys()]) <= 60


def test_detail_rows_can_be_left_out_and_no_rule_reads_them(fleet):
    detail = {row.name for row in TABLE if row.detail}
    assert {row_name(series) for series in series_of(fleet)} & detail == detail
    assert not {row_name(series) for series in series_of(fleet, detail=False)} & detail
    expressions = [rule["expr"] for group in groups(Config()) for rule in group["rules"]]
    assert [name for name in detail if any(name in expression for expression in expressions)] == []


def test_histogram_counts_every_free_block_once(fleet, golden):
    heap = golden("train-default").heap
    free = [b.size for s in heap.segments if not s.small for b in s.blocks() if b.state == "inactive"]
    labels = {"rank": "0", "device": "0", "pool": "large", "at": "boundary"}
    counts = [value_of(fleet, f"{names.FREE_BLOCK_SIZE}_bucket", le=le, **labels) for le in ("3.3554432e+07", "+Inf")]
    assert counts == [sum(size <= 32 << 20 for size in free), len(free)]
    assert value_of(fleet, f"{names.FREE_BLOCK_SIZE}_gcount", **labels) == len(free)
    assert value_of(fleet, f"{names.FREE_BLOCK_SIZE}_gsum", **labels) == sum(free)


def test_limit_is_smaller_of_cap_and_device(fleet, golden):
    size, cap = golden("train-default").raw["driver_total"], golden("churn-expandable").raw["cap_bytes"]
    assert value_of(fleet, names.LIMIT, rank="0", device="0") == size
    assert value_of(fleet, names.LIMIT, rank="1", device="1") == cap


def test_snapshot_active_includes_private_pools(a_device, a_process):
    device = a_device("train-default")
    (snapshot,) = device.snapshots
    pools = replace(snapshot.measured, private_pool_reserved=700, captive=200)
    device = replace(device, snapshots=(replace(snapshot, measured=pools),))
    measured = snapshot.measured.large.active + snapshot.measured.small.active
    fleet = Fleet(0.0, (RankView(a_process(device, rank=0)),))
    assert value_of(fleet, names.SNAPSHOT_ACTIVE, rank="0", device="0", at="boundary") == measured + 500


def test_exited_rank_keeps_counters_and_last_error_only(fleet):
    exited = {name for name, *labels in series_of(fleet) if dict(labels).get("rank") == "2"}
    assert {names.STEPS, names.OOM_CAUSES} <= exited
    gauges = {name for name in exited if not name.endswith("_total")}
    assert gauges == {names.UP, names.OOM_LAST_TIMESTAMP, names.OOM_LAST_REQUESTED}
    assert value_of(fleet, names.UP, rank="2") == 0


def test_failure_reason_is_present_only_while_source_fails() -> None:
    results = {
        "fails": CollectorResult(False, 2.0, "no library"),
        "works": CollectorResult(True, 0.1, "an earlier reason"),
        "first-try": CollectorResult(False),
    }
    found = series_of(Fleet(0.0, collectors=results))
    failing = [dict(labels) for name, *labels in found if name == names.COLLECTOR_FAILURE_INFO]
    assert failing == [{"collector": "fails", "reason": "no library"}]


def test_empty_fleet_reports_zero_ranks_and_build():
    found = series_of(Fleet(0.0))
    assert found.pop((names.RANKS, ("state", "alive"))) == 0
    assert found.pop((names.RANKS, ("state", "dead"))) == 0
    assert [name for name, *_ in found] == [names.BUILD_INFO]


def page_tables():
    for number, (title, rows) in enumerate(SECTIONS.items()):
        yield from ([""] if number else []) + [f"## {title}", "", "| metric | type | labels | meaning |"]
        yield "| --- | --- | --- | --- |"
        for row in rows:
            kind = "gauge histogram" if row.kind == HISTOGRAM else row.kind
            text = re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", row.help)
            yield f"| `{row.name}` | {kind} | {', '.join(row.labels)} | {text} |"


def test_metrics_page_is_up_to_date():
    kept_block(PAGE, "metrics", page_tables())


def test_fragmentation_ratio_is_found_without_rules():
    """In the help of both components, and first on the page."""
    by_name = {row.name: row.help for row in TABLE}
    assert RATIO in by_name[names.FREE_TOTAL]
    assert RATIO in by_name[names.LARGEST_ALLOCATABLE]
    assert RATIO in " ".join(PAGE.read_text(encoding="utf-8").splitlines()[:8])


def test_margin_is_limit_less_smallest_limit(fleet):
    labels = {"rank": "0", "device": "0"}
    assert value_of(fleet, names.STEP_SMALLEST_LIMIT, **labels) == 13 << 30
    assert value_of(fleet, names.STEP_MARGIN, **labels) == 27 << 30
    assert value_of(fleet, names.WHATIF_SMALLEST_LIMIT, setting="expandable_segments", **labels) == 12 << 30


def test_margin_without_a_limit_is_absent(a_process, a_device):
    step = StepView(0, 1.0, 0.5, 1, 1, 1, 1, None, {"recorded": 5})
    one = Fleet(0.0, (RankView(a_process(a_device("train-cap4"), rank=0), steps=(step,)),))
    assert names.STEP_MARGIN not in {row_name(series) for series in series_of(one)}
