"""A fleet as the sidecar sees it, built from golden cases by the real model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufrag.metrics.view import CollectorResult, DeviceView, Fleet, ProcessView, RankView, StepView
from gpufrag.model.fragmentation import measure
from gpufrag.wire.defragmentation import Defragmentations
from gpufrag.wire.sample import (
    AgentHealth,
    Counters,
    DeviceSample,
    DriverReading,
    Identity,
    Leak,
    Ooms,
    PoolTotals,
    ProcessSample,
    Snapshot,
    Totals,
)
from helpers import golden_case_named

NOW = 1764000000.25
UUID = "GPU-5d2f8a1c-0000-4000-8000-00000000000{}"


LIMITS = {"recorded": 13 << 30, "default": 13 << 30, "expandable_segments": 12 << 30}
STEP = StepView(0, NOW - 30, 0.75, 12 << 30, 3 << 30, 8000, 90 << 30, 40 << 30, LIMITS)


def totals_of(stats, time) -> Totals:
    def pool(name):
        keys = ("allocated", "active", "requested", "reserved", "inactive_split")
        return PoolTotals(*(stats[f"{key}_bytes.{name}_pool.current"] for key in keys))

    counters = Counters(
        stats["num_alloc_retries"],
        stats["num_ooms"],
        stats["num_device_alloc"],
        stats["num_device_free"],
        stats["num_sync_all_streams"],
    )
    peaks = stats["active_bytes.all.peak"], stats["reserved_bytes.all.peak"]
    return Totals(time, pool("large"), pool("small"), *peaks, counters)


def device_of(name, device=0, moments=("boundary",)) -> DeviceSample:
    case = golden_case_named(name)
    driver = case.driver
    measured = measure(case.heap, driver)
    return DeviceSample(
        device=device,
        backend="native",
        uuid=UUID.format(device),
        alloc_conf=case.raw["conf"] or None,
        driver_version="580.159.04",
        limit=driver.limit,
        totals=totals_of(case.raw["stats"], NOW - 1),
        driver=DriverReading(NOW - 1, driver.free, driver.size),
        largest_recurring=64 << 20,
        snapshots=tuple(Snapshot(NOW - 9 + i, at, 0.0007, measured) for i, at in enumerate(moments)),
    )


def process_of(*devices, rank=None, pid=4242, **fields) -> ProcessSample:
    identity = Identity("node-7", pid, NOW - 3600, rank, rank, None if rank is None else 2, "torch", "2.11.0+cu130")
    health = AgentHealth(
        {"snapshot": 0.0042, "stats": 0.051, "wait": 0.0, "measure": 0.0087},
        {"driver": 1},
        {"recorded": 12, "interrupted": 1},
    )
    return ProcessSample(identity, NOW - 0.5, devices, health=health, **fields)


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    """Two ranks of a job (one with two moments, one with a limit), a server without a rank, and an exited rank."""
    size = golden_case_named("train-default").raw["driver_total"]
    first = replace(device_of("train-default", moments=("boundary", "peak")), leak=Leak("step", 2.5e6, 2e6, 3e6, 0, 99))
    second = replace(device_of("churn-expandable", device=1), leak=Leak("step"))
    serving = replace(device_of("streams-default", moments=()), leak=Leak("second", 7e4, 6e4, 8e4, 0, 900))
    moved = Defragmentations(5 << 30, 0.0353, {"private-pool": 2, "failed": 1}, 108 << 20, 1504 << 20)
    first = replace(first, defragmentations=moved)
    failed = replace(first, ooms=Ooms({"fragmentation": 2, "capacity": 0}, NOW - 60, 3 << 30))
    return Fleet(
        time=NOW,
        ranks=(
            RankView(
                process_of(first, rank=0, steps=120),
                memory={0: ProcessView(UUID.format(0), None, 4 << 30, 1 << 30)},
                steps=(STEP,),
            ),
            RankView(process_of(second, rank=1, pid=4243, steps=120)),
            RankView(process_of(serving, pid=5000)),
            RankView(process_of(failed, rank=2, pid=4000, steps=77), alive=False),
        ),
        devices=(
            DeviceView(UUID.format(0), 0, size, 100 << 30, 39 << 30, 1 << 30, 2 << 30, "NVIDIA H200", "580.159.04"),
            DeviceView("MIG-0a", 1, 18 << 30, 12 << 30, 6 << 30, mig_profile="1g.18gb", parent_uuid=UUID.format(1)),
        ),
        collectors={
            "folder": CollectorResult(True, 0.0021),
            "nvml": CollectorResult(False, 2.0, 'nvmlInit hung: "driver"\nreload it'),
        },
        skipped={"newer version": 1},
        analyses={"analysed": 12, "skipped": 3, "failed": 1},
    )


@pytest.fixture(scope="session")
def a_device():
    return device_of


@pytest.fixture(scope="session")
def a_process():
    return process_of
