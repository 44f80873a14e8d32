"""NVML's figures against those of torch in the same process."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpufrag.metrics.view import RankView
from gpufrag.sidecar import procfs
from gpufrag.sidecar.join import join
from gpufrag.sidecar.readings import Device, Instance, NvmlReading
from gpufrag.wire.sample import DeviceSample, DriverReading, Identity, PoolTotals, ProcessSample, Totals

GIB = 1 << 30
MIB = 1 << 20
MOST_CONTEXT = 2 * GIB  # of one process: CUDA's context, its modules and libraries


@pytest.fixture(scope="module")
def torch(cuda_torch: Any) -> Iterator[Any]:
    """Torch with 1 GiB held on device 0."""
    held = cuda_torch.empty(GIB, dtype=cuda_torch.uint8, device="cuda:0")
    cuda_torch.cuda.synchronize()
    yield cuda_torch
    del held


@pytest.fixture(scope="module")
def reading(torch: Any) -> NvmlReading:
    from gpufrag.sidecar.nvml import Session

    return Session().read()


def test_torchs_uuid_identifies_one_device(torch: Any, reading: NvmlReading) -> None:
    assert _own_unit(torch, reading) is not None
    assert reading.driver_version


def test_nvml_memory_agrees_with_the_runtime(torch: Any, reading: NvmlReading) -> None:
    memory = _own_unit(torch, reading).memory
    free, size = torch.cuda.mem_get_info(0)
    assert memory.free + memory.used + (memory.reserved or 0) == memory.size
    assert 0 <= memory.size - size <= MOST_CONTEXT
    assert abs(memory.free - free) <= MOST_CONTEXT
    assert memory.used >= GIB


def test_own_memory_is_exact_or_absent(torch: Any, reading: NvmlReading) -> None:
    joined = join([_own_rank(torch)], reading, procfs.visible_processes(reading.pids))
    memory = joined.ranks[0].memory[0]
    assert memory.uuid.startswith("GPU-")
    listed = os.getpid() in (_own_unit(torch, reading).processes or {})
    if listed:
        assert memory.used >= torch.cuda.memory_reserved(0)
        assert 16 * MIB <= memory.context <= MOST_CONTEXT
    else:
        assert (memory.used, memory.context) == (None, None)


def test_agents_reading_and_nvmls_are_of_one_device(torch: Any, reading: NvmlReading) -> None:
    rank = _own_rank(torch)
    (alone,) = join([rank], None, procfs.visible_processes(())).devices
    joined = {view.uuid: view for view in join([rank], reading, procfs.visible_processes(reading.pids)).devices}
    assert abs((alone.free or 0) - (joined[alone.uuid].free or 0)) <= MOST_CONTEXT


@pytest.mark.usefixtures("reading")
def test_reading_nvml_creates_no_context() -> None:
    script = "import os; from gpufrag.sidecar.nvml import Session; r = Session().read(); print(os.getpid() in r.pids)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


MIG = """
import json, os, pynvml, torch
from gpufrag.sidecar.join import join
from gpufrag.sidecar.nvml import Session
from gpufrag.sidecar.procfs import visible_processes
held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
reading = Session().read()
(device,), own = reading.devices, str(torch.cuda.get_device_properties(0).uuid)
(instance,), (view,) = device.instances, join([], reading, visible_processes(reading.pids)).devices
instance_handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(pynvml.nvmlDeviceGetHandleByIndex(0), 0)
parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance_handle)
print(json.dumps({
    "problems": len(reading.problems), "parent": [device.memory, device.processes], "profile": instance.profile,
    "own": instance.uuids == (f"MIG-{own}",), "used": instance.processes[os.getpid()] >= 1 << 30,
    "shown": [view.uuid == f"MIG-{own}", view.parent_uuid == device.uuid == pynvml.nvmlDeviceGetUUID(parent)],
    "size": [view.size == instance.memory.size, instance.memory.size > 1 << 30],
}))
"""


def test_mig_device_of_the_stub_is_shown_without_its_gpu(torch: Any, run_json: Callable[..., Any]) -> None:
    if "Fake" not in torch.cuda.get_device_name(0):
        pytest.skip("only the stub can be switched to MIG")
    assert run_json(MIG, FAKE_CUDA_MIG="1") == {
        "problems": 0, "parent": [None, None], "profile": "1g.10gb", "own": True, "used": True,
        "shown": [True, True], "size": [True, True],
    }  # fmt: skip


def _own_unit(torch: Any, reading: NvmlReading) -> Device | Instance:
    """The GPU, or the MIG instance, that device 0 of torch is."""
    own = str(torch.cuda.get_device_properties(0).uuid).lower()
    units = [unit for device in reading.devices for unit in device.instances or (device,)]
    named = {uuid: unit for unit in units for uuid in (unit.uuids if isinstance(unit, Instance) else (unit.uuid,))}
    (found,) = [unit for uuid, unit in named.items() if uuid.lower().endswith(own)]
    return found


def _own_rank(torch: Any) -> RankView:
    now = time.time()
    start = procfs.visible_processes([os.getpid()]).by_pid[os.getpid()].start
    empty = PoolTotals(0, 0, 0, 0, 0)
    large = PoolTotals(0, 0, 0, torch.cuda.memory_reserved(0), 0)
    totals = Totals(now, large, empty, peak_active=0, peak_reserved=0)
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    driver = DriverReading(now, *torch.cuda.mem_get_info(0))
    sample = DeviceSample(0, "native", uuid, totals=totals, driver=driver)
    return RankView(ProcessSample(Identity("here", os.getpid(), start), now, (sample,)))
