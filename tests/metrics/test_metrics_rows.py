"""The table keeps its own promises, and each row reads what its help says."""

import re
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from gpufrag.metrics import TABLE, FleetCollector, families, render
from gpufrag.metrics.row import COUNTER, HISTOGRAM, INFO
from gpufrag.metrics.view import DeviceView, Fleet, ProcessView, RankView
from gpufrag.mixin.config import Config
from gpufrag.mixin.rules import rule_file
from gpufrag.wire.sample import Leak, Ooms

GIB = 1 << 30


def _series(fleet, **options):
    return {(s.name, *sorted(s.labels.items())): s.value for f in families(fleet, **options) for s in f.samples}


def _value(fleet, name, **labels):
    return _series(fleet).get((name, *sorted(labels.items())))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_names_and_help_are_of_one_form(row):
    assert re.fullmatch(r"gpufrag_[a-z]+(_[a-z]+)*", row.name)
    assert row.name.endswith("_total") == (row.kind == COUNTER)
    assert row.name.endswith("_info") == (row.kind == INFO)
    assert row.help.endswith(".")
    assert row.help.isascii()
    assert not re.search(r"_ratio|percent|_[kmg]i?b(_|$)", row.name)


def test_no_name_is_given_twice():
    names = [row.name for row in TABLE]
    assert len(set(names)) == len(names)


def test_series_carry_only_declared_labels(fleet):
    declared = {row.name: {*row.labels, "process", *(["le"] if row.kind == HISTOGRAM else [])} for row in TABLE}
    for name, *labels in _series(fleet):
        row = re.sub("_(bucket|gcount|gsum)$", "", name)
        assert {label for label, _ in labels} <= declared[row]


def _own(fleet, **how):
    return [name for name, *labels in _series(fleet, **how) if {"rank", "uuid"} & dict(labels).keys()]


def test_a_rank_has_at_most_60_series_without_detail(a_device, a_process):
    """With all that it can have: two moments, a leak, an error, faults of the agent, the driver's view, its device."""
    device = replace(
        a_device("train-cap4", moments=("boundary", "peak")),
        leak=Leak("step", 2.5e6, 2e6, 3e6, 0, 99),
        ooms=Ooms(dict.fromkeys(("fragmentation", "capacity", "limit", "neighbours", "unknown"), 1), 1.0, 3 * GIB),
    )
    memory = {0: ProcessView("GPU-0", None, 4 * GIB, GIB)}
    gpu = DeviceView("GPU-0", 0, *5 * [GIB], name="A GPU", driver_version="580")
    rank = RankView(a_process(device, rank=0, steps=1, peak_method="phase"), memory=memory)
    one = Fleet(0.0, (rank,), (gpu,))
    print(f"{len(_own(one, detail=False))} of {len(_own(one))} series a rank without detail")
    assert 50 <= len(_own(one, detail=False)) <= 60


def test_no_rule_reads_a_detail():
    read = rule_file(Config())
    assert [row.name for row in TABLE if row.detail and row.name in read] == []


def test_details_can_be_switched_off(fleet):
    details = {row.name for row in TABLE if row.detail}
    assert not [
        name for name, *_ in _series(fleet, detail=False) if re.sub("_(bucket|gcount|gsum)$", "", name) in details
    ]
    assert b"block_size" not in render(fleet, detail=False)[1]


def test_a_histogram_counts_every_free_block_once(fleet, golden):
    heap = golden("train-default").heap
    free = [b.size for s in heap.segments if not s.small for b in s.blocks() if b.state == "inactive"]
    labels = {"rank": "0", "device": "0", "pool": "large", "at": "boundary"}
    name = "gpufrag_allocator_free_block_size_bytes"
    below = _value(fleet, f"{name}_bucket", le="3.3554432e+07", **labels)
    assert below == sum(size <= 32 << 20 for size in free)
    assert _value(fleet, f"{name}_bucket", le="+Inf", **labels) == len(free)
    assert _value(fleet, f"{name}_gcount", **labels) == len(free)
    assert _value(fleet, f"{name}_gsum", **labels) == sum(free)


def test_the_limit_is_the_smaller_of_cap_and_device(fleet, golden):
    size, cap = golden("train-default").raw["driver_total"], golden("churn-expandable").raw["cap_bytes"]
    assert _value(fleet, "gpufrag_allocator_limit_bytes", rank="0", device="0") == size
    assert _value(fleet, "gpufrag_allocator_limit_bytes", rank="1", device="1") == cap


def test_active_at_a_snapshot_counts_private_pools(a_device, a_process):
    device = a_device("train-default")
    (snapshot,) = device.snapshots
    pools = replace(snapshot.measured, private_pool_reserved=700, captive=200)
    device = replace(device, snapshots=(replace(snapshot, measured=pools),))
    measured = snapshot.measured.large.active + snapshot.measured.small.active
    fleet = Fleet(0.0, (RankView(a_process(device, rank=0)),))
    assert _value(fleet, "gpufrag_snapshot_active_bytes", rank="0", device="0", at="boundary") == measured + 500


def test_the_dead_leave_their_counters_their_last_error_and_nothing_else(fleet):
    dead = {name for name, *labels in _series(fleet) if dict(labels).get("rank") == "2"}
    assert {"gpufrag_steps_total", "gpufrag_oom_causes_total"} <= dead
    last_error = {"gpufrag_oom_last_timestamp_seconds", "gpufrag_oom_last_requested_bytes"}
    assert {name for name in dead if not name.endswith("_total")} == {"gpufrag_up"} | last_error
    assert _value(fleet, "gpufrag_up", rank="2") == 0


def test_a_reason_is_shown_only_while_a_source_fails(fleet):
    reasons = [
        dict(labels)["collector"] for name, *labels in _series(fleet) if name == "gpufrag_collector_failure_info"
    ]
    assert reasons == ["nvml"]


def test_an_empty_fleet_says_that_it_is_empty():
    found = _series(Fleet(0.0))
    assert found.pop(("gpufrag_ranks", ("state", "alive"))) == 0
    assert found.pop(("gpufrag_ranks", ("state", "dead"))) == 0
    assert [name for name, *_ in found] == ["gpufrag_build_info"]


def test_a_registry_accepts_the_collector_once_and_without_reading(fleet):
    def unread():
        raise AssertionError("the fleet was read")

    registry = CollectorRegistry()
    registry.register(FleetCollector(unread))
    with pytest.raises(ValueError, match="gpufrag_allocator_allocated_bytes"):
        registry.register(FleetCollector(lambda: fleet))


def test_a_registry_scrapes_it(fleet):
    registry = CollectorRegistry()
    registry.register(FleetCollector(lambda: fleet))
    assert registry.get_sample_value("gpufrag_steps_total", {"rank": "1"}) == 120
