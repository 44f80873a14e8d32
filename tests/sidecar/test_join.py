"""Joining agents' samples, NVML's lists and /proc."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.metrics.view import DeviceView, ProcessView, RankView
from gpufrag.sidecar.join import join
from gpufrag.sidecar.procfs import HostProcess, VisibleProcesses
from gpufrag.sidecar.readings import Device, Instance, Memory, NvmlReading
from gpufrag.wire.sample import DeviceSample, DriverReading, Identity, PoolTotals, ProcessSample, Sums, Totals

NOW = 5000.0
START = 1000.0
PIDS = Mapping[int, "int | None"]


def a_rank(*devices: DeviceSample, pid: int = 42, rank: int | None = 0, alive: bool = True) -> RankView:
    return RankView(ProcessSample(Identity("host", pid, START, rank), NOW, devices), alive)


def a_sample(uuid: str | None = "aaaa", device: int = 0, reserved: int = 100, mig: str | None = None) -> DeviceSample:
    pools = PoolTotals(0, 0, 0, reserved, 0), PoolTotals(0, 0, 0, 0, 0)
    totals = Totals(NOW, *pools, peak_active=0, peak_reserved=0)
    return DeviceSample(device, "native", uuid, mig, totals=totals, driver=DriverReading(NOW, 600, 1000))


def a_gpu(processes: PIDS | None, index: int = 0, uuid: str = "GPU-aaaa") -> Device:
    return Device(index, uuid, "NVIDIA H200", Memory(1000, 590, 400, 10), processes)


def a_mig_gpu(*instances: Instance) -> Device:
    return Device(0, "GPU-aaaa", "NVIDIA H100", None, None, instances)


def an_instance(number: int, uuids: tuple[str, ...], processes: PIDS) -> Instance:
    return Instance(number, uuids, f"{number}g.10gb", Memory(200, 120, 78, 2), processes)


def a_reading(*devices: Device) -> NvmlReading:
    return NvmlReading(NOW, "550.1", devices)


def seen(*pids: int, complete: bool = True, **inside: int) -> VisibleProcesses:
    """Each pid is its own innermost pid; `p7=1` means that pid 7 is 1 in its container."""
    known = {pid: HostProcess(pid, START) for pid in pids}
    return VisibleProcesses(
        known | {int(pid[1:]): HostProcess(inner, START) for pid, inner in inside.items()}, complete
    )


def test_memory_beyond_a_rank_is_others() -> None:
    joined = join([a_rank(a_sample())], a_reading(a_gpu({42: 150, 7: 30, 8: 20})), seen(42, 7, 8))
    assert joined.ranks[0].memory == {0: ProcessView("GPU-aaaa", None, used=150, context=50)}
    assert joined.devices == (DeviceView("GPU-aaaa", 0, 1000, 590, 400, 10, 50, "NVIDIA H200", "550.1"),)


@pytest.mark.parametrize("uuid", ["aaaa", "GPU-aaaa", "AAAA"])
def test_uuids_match_in_every_notation(uuid: str) -> None:
    joined = join([a_rank(a_sample(uuid))], a_reading(a_gpu({42: 150})), seen(42))
    assert joined.ranks[0].memory[0] == ProcessView("GPU-aaaa", None, 150, 50)


RANK, IN_CONTAINER = a_rank(a_sample()), a_rank(a_sample(), pid=1)
SECOND_IN_CONTAINER = a_rank(a_sample("bbbb"), pid=1, rank=1)


def listed(*processes: PIDS) -> list[Device]:
    """GPUs aaaa and bbbb with these processes."""
    return [a_gpu(pids, index, f"GPU-{uuid * 4}") for index, (pids, uuid) in enumerate(zip(processes, "ab"))]


MATCHES: dict[str, tuple[list[RankView], list[Device], VisibleProcesses, list[int | None], list[int | None]]] = {
    # case: (ranks, GPUs, /proc, the ranks' used bytes, the devices' bytes of others)
    "pid in a container": ([IN_CONTAINER], listed({4711: 150}), seen(p4711=1), [150], [0]),
    "pid not in /proc": ([RANK], listed({42: 150}), seen(), [None], [None]),
    "another namespace's 42": ([RANK], listed({42: 150}), seen(p42=9), [None], [None]),
    "pid used again": (
        [RANK], listed({42: 150}), VisibleProcesses({42: HostProcess(42, START + 60)}, True), [None], [None]
    ),
    "identical containers": ([IN_CONTAINER], listed({70: 150, 80: 60}), seen(p70=1, p80=1), [None], [None]),
    "identical containers on two GPUs": (
        [IN_CONTAINER, SECOND_IN_CONTAINER], listed({70: 150}, {80: 160}), seen(p70=1, p80=1), [150, 160], [0, 0]
    ),
    "empty list in a container": ([RANK], listed({}), seen(complete=False), [None], [None]),
    "hidden processes": ([RANK], listed({42: 150}), seen(42, complete=False), [150], [None]),
    "idle GPU": ([], listed({}), seen(), [], [0]),
    "other process of unknown size": ([RANK], listed({42: 150, 7: None}), seen(42, 7), [150], [None]),
    "own size unknown": ([RANK], listed({42: None, 7: 5}), seen(42, 7), [None], [5]),
    "rank without UUID, not found": ([a_rank(a_sample(None))], listed({7: 30}, {}), seen(7), [None], [None, None]),
    "exited rank": ([a_rank(a_sample(), alive=False)], listed({7: 30}), seen(7), [None], [30]),
}  # fmt: skip


@pytest.mark.parametrize("case", MATCHES)
def test_processes_are_matched_by_pid_and_uuid(case: str) -> None:
    ranks, devices, visible, used, others = MATCHES[case]
    joined = join(ranks, a_reading(*devices), visible)
    assert [rank.memory[0].used for rank in joined.ranks] == used
    assert [device.other_used for device in joined.devices] == others
    assert all(rank.memory[0].context is None for rank, bytes_ in zip(joined.ranks, used) if bytes_ is None)


@pytest.mark.parametrize(("others", "context"), [(30, 20), (51, None), (None, None)])
def test_context_is_memory_outside_all_frameworks(others: int | None, context: int | None) -> None:
    second = DeviceSample(0, "bfc", framework="jax", sums=Sums(NOW, reserved=others))
    memory = join([a_rank(second, a_sample())], a_reading(a_gpu({42: 150})), seen(42)).ranks[0].memory
    assert memory == {0: ProcessView("GPU-aaaa", None, 150, context)}


@pytest.mark.parametrize(("reserved", "read_at"), [(151, NOW), (100, NOW - 3)], ids=["do not fit", "too far apart"])
def test_context_needs_values_of_one_time(reserved: int, read_at: float) -> None:
    sample = a_sample(reserved=reserved)
    assert sample.totals
    sample = replace(sample, totals=replace(sample.totals, time=read_at))
    memory = join([a_rank(sample)], a_reading(a_gpu({42: 150})), seen(42)).ranks[0].memory[0]
    assert (memory.used, memory.context) == (150, None)


def test_rank_without_uuid_is_found_by_its_process() -> None:
    reading = a_reading(a_gpu({7: 30}), a_gpu({42: 150}, 1, "GPU-bbbb"))
    joined = join([a_rank(a_sample(None))], reading, seen(42, 7))
    assert joined.ranks[0].memory[0] == ProcessView("GPU-bbbb", None, 150, 50)
    assert [device.other_used for device in joined.devices] == [30, 0]


@pytest.mark.parametrize("uuid", ["aaaa", "2222"], ids=["torch names the GPU", "torch names the MIG device"])
def test_mig_device_is_found_among_compute_instances(uuid: str) -> None:
    gpu = a_mig_gpu(an_instance(2, ("MIG-1111", "MIG-2222"), {42: 60}), an_instance(1, ("MIG-3333",), {9: 5}))
    joined = join([a_rank(a_sample(uuid, reserved=50, mig="MIG-2222"))], a_reading(gpu), seen(42, 9))
    assert joined.ranks[0].memory[0] == ProcessView("GPU-aaaa", "MIG-2222", 60, 10)
    shared = DeviceView("MIG-1111", 0, 200, 120, 78, 2, 0, "NVIDIA H100", "550.1", "2g.10gb", "GPU-aaaa")
    assert joined.devices[0] == shared
    assert [device.uuid for device in joined.devices] == ["MIG-1111", "MIG-3333"]


def test_mig_gpu_is_searched_for_the_process() -> None:
    gpu = a_mig_gpu(an_instance(2, ("MIG-1111",), {42: 60}), an_instance(1, ("MIG-3333",), {9: 5}))
    joined = join([a_rank(a_sample("aaaa", reserved=50))], a_reading(gpu), seen(42, 9))
    assert joined.ranks[0].memory[0] == ProcessView("GPU-aaaa", "MIG-1111", 60, 10)


def test_agents_report_the_device_without_nvml() -> None:
    """With the index of the lowest rank, and the latest reading of any process."""
    late = replace(a_sample(device=3), driver=DriverReading(NOW + 1, 500, 1000), driver_version="550.2")
    server = a_rank(a_sample(device=9), pid=1, rank=None)
    joined = join([a_rank(a_sample(device=7), rank=1), a_rank(late, pid=43), server], None, VisibleProcesses())
    assert joined.devices == (DeviceView("GPU-aaaa", 3, size=1000, free=500, used=500, driver_version="550.2"),)
    assert joined.ranks[0].memory == {7: ProcessView("GPU-aaaa")}


def test_agents_report_a_mig_device_without_nvml() -> None:
    (device,) = join([a_rank(a_sample("2222", mig="MIG-2222"))], None, VisibleProcesses()).devices
    assert device == DeviceView("MIG-2222", 0, size=1000, free=600, used=400)


def test_exited_rank_reports_no_device() -> None:
    assert join([a_rank(a_sample(), alive=False)], None, VisibleProcesses()).devices == ()


def test_device_without_uuid_is_not_shown() -> None:
    assert join([a_rank(a_sample(None))], None, VisibleProcesses()).devices == ()


def test_device_unknown_to_nvml_is_shown_too() -> None:
    joined = join([a_rank(a_sample("cccc", device=2))], a_reading(a_gpu({})), seen())
    assert [(view.uuid, view.size) for view in joined.devices] == [("GPU-aaaa", 1000), ("GPU-cccc", 1000)]
    assert joined.devices[0].other_used == 0


NO_SIZE = a_rank(replace(a_sample(), driver=DriverReading(NOW, 0, 0)))


@pytest.mark.parametrize(
    ("ranks", "visible", "expected"),
    [
        ([RANK], seen(42), (1000, 600, 400, None)),
        ([RANK], seen(), (1000, 600, 400, None)),
        ([NO_SIZE], seen(42), (None,) * 4),
        ([], seen(42), (None,) * 4),
    ],
    ids=["rank", "rank known by its UUID only", "rank that read a size of 0", "no rank"],
)
def test_memory_unknown_to_nvml_comes_from_the_agents(ranks: Any, visible: Any, expected: Any) -> None:
    silent = replace(a_gpu({42: 150}), memory=None)
    (device,) = join(ranks, a_reading(silent), visible).devices
    assert (device.size, device.free, device.used, device.reserved) == expected


pids = st.integers(1, 30)


@given(listed=st.dictionaries(pids, st.integers(0, 1000)), agents=st.sets(pids), hidden=st.sets(pids))
def test_every_byte_is_counted_once(listed: dict[int, int], agents: set[int], hidden: set[int]) -> None:
    ranks = [a_rank(a_sample(), pid=pid, rank=pid) for pid in sorted(agents)]
    joined = join(ranks, a_reading(a_gpu(listed)), seen(*(listed.keys() - hidden)))
    ours = [rank.memory[0].used for rank in joined.ranks]
    (device,) = joined.devices
    if agents <= listed.keys() - hidden:
        assert sum(used or 0 for used in ours) + (device.other_used or 0) == sum(listed.values())
    else:
        assert device.other_used is None
        assert None in ours
