"""Allocators without torch's pools, and processes with two frameworks: what is not told has no series."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufrag.metrics import families
from gpufrag.metrics.view import Fleet, ProcessView, RankView
from gpufrag.wire.sample import DeviceSample, DriverReading, Leak, Sums

ASYNC = Sums(time=1.0, allocated=10, active=12, reserved=20, peak_active=15, peak_reserved=25)
BFC = Sums(
    time=1.0, allocated=20, active=20, reserved=100, free_cached=80, largest_free_block=30, free_total=80,
    largest_allocatable=30,
)  # fmt: skip
JAX = DeviceSample(0, "bfc", sums=BFC, limit=100, framework="jax", framework_version="0.10.2")


@pytest.fixture
def told(a_process):
    """Series of one process with rank 0: name -> {the other labels: value}."""

    def tell(*devices: DeviceSample, **memory: ProcessView) -> dict[str, dict[tuple[str, ...], float]]:
        views = {0: memory["memory"]} if memory else {}
        fleet = Fleet(2.0, (RankView(a_process(*devices, rank=0), memory=views),))
        series: dict[str, dict[tuple[str, ...], float]] = {}
        for family in families(fleet):
            for sample in family.samples:
                own = {key: value for key, value in sample.labels.items() if key not in ("rank", "device")}
                series.setdefault(sample.name, {})[tuple(f"{k}={v}" for k, v in sorted(own.items()))] = sample.value
        return series

    return tell


def test_sums_have_no_pool_and_what_is_not_told_no_series(told) -> None:
    series = told(DeviceSample(0, "cudaMallocAsync", sums=ASYNC, driver=DriverReading(1.0, 5, 50)))
    figures = {name.removeprefix("gpufrag_allocator_"): of for name, of in series.items() if "_allocator_" in name}
    assert figures == {
        "allocated_bytes": {(): 10},
        "active_bytes": {(): 12},
        "reserved_bytes": {(): 20},
        "peak_active_bytes": {(): 15},
        "peak_reserved_bytes": {(): 25},
        "limit_bytes": {(): 50},
    }


def test_what_is_told_of_free_memory_without_a_snapshot_is_by_the_clock(told) -> None:
    series = told(replace(JAX, framework=None))
    for name, value in {
        "free_cached": 80,
        "largest_free_block": 30,
        "free_total": 80,
        "largest_allocatable": 30,
    }.items():
        assert series[f"gpufrag_allocator_{name}_bytes"] == {("at=timer",): value}


def test_the_second_framework_of_a_process_has_its_name_in_every_series(told, a_device) -> None:
    series = told(JAX, a_device("train-default"))
    assert series["gpufrag_allocator_reserved_bytes"].keys() == {("framework=jax",), ("pool=large",), ("pool=small",)}
    infos = [dict(label.split("=", 1) for label in labels) for labels in series["gpufrag_process_info"]]
    assert [(i["framework"], i["framework_version"], i["backend"]) for i in infos] == [
        ("torch", "2.11.0+cu130", "native"), ("jax", "0.10.2", "bfc"),
    ]  # fmt: skip


def test_what_the_driver_tells_of_a_process_is_told_once(told, a_device) -> None:
    series = told(replace(JAX, uuid="GPU-0"), a_device("train-default"), memory=ProcessView("GPU-0", None, 1000, 100))
    assert series["gpufrag_process_device_memory_used_bytes"] == {(): 1000}
    assert series["gpufrag_process_context_memory_bytes"] == {(): 100}
    assert ["uuid=GPU-0" in labels for labels in series["gpufrag_process_info"]] == [True, False]


def test_a_device_that_only_the_second_framework_uses_is_told_in_full(told, a_device) -> None:
    series = told(JAX, a_device("train-default", device=1), memory=ProcessView("GPU-0", None, 1000, 100))
    assert series["gpufrag_process_device_memory_used_bytes"] == {("framework=jax",): 1000}


@pytest.mark.parametrize(
    ("leak", "expected"),
    [
        (None, [None, None]),
        (Leak("step"), [{(): 0}, None]),
        (Leak("second", 3.0), [None, {(): 3.0}]),
    ],
)
def test_a_leak_has_one_unit_and_what_is_not_known_none(told, leak, expected) -> None:
    series = told(replace(JAX, framework=None, leak=leak))
    assert [series.get(f"gpufrag_leak_bytes_per_{unit}") for unit in ("step", "second")] == expected
