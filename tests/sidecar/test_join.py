"""Joining agents' samples, NVML's lists and /proc."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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


def test_containerised_pid_is_matched_by_its_innermost_number() -> None:
    joined = join([a_rank(a_sample(), pid=1)], a_reading(a_gpu({4711: 150})), seen(p4711=1))
    assert joined.ranks[0].memory[0].used == 150


@pytest.mark.parametrize(
    "visible",
    [
        VisibleProcesses({}, complete=True),
        VisibleProcesses({42: HostProcess(9, START)}, complete=True),
        VisibleProcesses({42: HostProcess(42, START + 60)}, complete=True),
    ],
    ids=["not in /proc", "another namespace's 42", "the pid was used again"],
)
def test_equal_pid_alone_is_not_a_match(visible: VisibleProcesses) -> None:
    joined = join([a_rank(a_sample())], a_reading(a_gpu({42: 150})), visible)
    assert joined.ranks[0].memory[0] == ProcessView("GPU-aaaa", None, None, None)
    assert joined.devices[0].other_used is None


def test_identical_containers_stay_unmatched() -> None:
    joined = join([a_rank(a_sample(), pid=1)], a_reading(a_gpu({70: 150, 80: 60})), seen(p70=1, p80=1))
    assert joined.ranks[0].memory[0].used is None
    assert joined.devices[0].other_used is None


def test_uuid_distinguishes_identical_containers() -> None:
    reading = a_reading(a_gpu({70: 150}), a_gpu({80: 160}, 1, "GPU-bbbb"))
    ranks = [a_rank(a_sample("aaaa"), pid=1), a_rank(a_sample("bbbb"), pid=1, rank=1)]
    joined = join(ranks, reading, seen(p70=1, p80=1))
    assert [rank.memory[0].used for rank in joined.ranks] == [150, 160]


def test_empty_list_in_a_container_leaves_others_unknown() -> None:
    joined = join([a_rank(a_sample())], a_reading(a_gpu({})), seen(complete=False))
    assert joined.ranks[0].memory[0] == ProcessView("GPU-aaaa")
    assert joined.devices[0].other_used is None


def test_hidden_processes_leave_others_unknown() -> None:
    joined = join([a_rank(a_sample())], a_reading(a_gpu({42: 150})), seen(42, complete=False))
    assert joined.ranks[0].memory[0].used == 150
    assert joined.devices[0].other_used is None


def test_idle_gpu_has_no_others() -> None:
    (device,) = join([], a_reading(a_gpu({})), seen()).devices
    assert device.other_used == 0


def test_process_of_unknown_size_leaves_the_sum_unknown() -> None:
    joined = join([a_rank(a_sample())], a_reading(a_gpu({42: 150, 7: None})), seen(42, 7))
    assert joined.devices[0].other_used is None


def test_unknown_memory_has_no_context() -> None:
    joined = join([a_rank(a_sample())], a_reading(a_gpu({42: None, 7: 5})), seen(42, 7))
    assert joined.ranks[0].memory[0] == ProcessView("GPU-aaaa", None, None, None)
    assert joined.devices[0].other_used == 5


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


def test_rank_on_an_unknown_device_leaves_others_unknown() -> None:
    reading = a_reading(a_gpu({7: 30}), a_gpu({}, 1, "GPU-bbbb"))
    joined = join([a_rank(a_sample(None))], reading, seen(7))
    assert joined.ranks[0].memory[0] == ProcessView()
    assert [device.other_used for device in joined.devices] == [None, None]


def test_exited_rank_is_not_on_the_device() -> None:
    joined = join([a_rank(a_sample(), alive=False)], a_reading(a_gpu({7: 30})), seen(7))
    assert joined.devices[0].other_used == 30
    assert joined.ranks[0].memory[0].used is None


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
    late = replace(a_sample(device=3), driver=DriverReading(NOW + 1, 500, 1000), driver_version="550.2")
    joined = join([a_rank(a_sample(device=7), rank=1), a_rank(late, pid=43, rank=0)], None, VisibleProcesses())
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


def test_memory_unknown_to_nvml_comes_from_the_agents() -> None:
    silent = replace(a_gpu({42: 150}), memory=None)
    (device,) = join([a_rank(a_sample())], a_reading(silent), seen(42)).devices
    assert (device.size, device.free, device.used, device.reserved) == (1000, 600, 400, None)


def test_unknown_memory_is_none() -> None:
    (device,) = join([], a_reading(replace(a_gpu({}), memory=None)), seen()).devices
    assert (device.size, device.free, device.used) == (None, None, None)


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
