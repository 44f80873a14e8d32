"""The real pynvml with a library built here that answers for a described machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

import gpufrag
from gpufrag.errors import Unavailable
from gpufrag.sidecar.join import join
from gpufrag.sidecar.nvml import FAULTS, NO_GPU, PROCESS_LISTS, UNKNOWN_AT_INIT, Fault, _Gpu, unknown
from gpufrag.sidecar.procfs import visible_processes
from gpufrag.sidecar.readings import Device, Instance, Memory, Problem

pytestmark = pytest.mark.real

DRIVER = "driver version=550.54.15\n"
GPU_0 = "gpu uuid=GPU-aaaa total=1000 reserved=10 used=300 name=NVIDIA H200\n"
GPU_1 = "gpu uuid=GPU-bbbb total=2000 reserved=20 used=500 name=NVIDIA H200\n"
TWO_GPUS = DRIVER + GPU_0 + GPU_1
MIG = (
    DRIVER
    + "gpu uuid=GPU-aaaa total=1000 reserved=10 used=300 mig=1 name=NVIDIA H100\n"
    + "mig gpu=0 instance=5 uuid=MIG-1111 total=400 reserved=4 used=50 name=NVIDIA H100 MIG 1c.2g.20gb\n"
    + "mig gpu=0 instance=5 uuid=MIG-2222 total=400 reserved=4 used=50 name=NVIDIA H100 MIG 1c.2g.20gb\n"
    + "mig gpu=0 instance=3 uuid=MIG-3333 total=200 reserved=2 used=60 name=NVIDIA H100 MIG 1g.10gb+me\n"
    + "process gpu=0 slot=0 pid=7 used=30\nprocess gpu=0 slot=1 pid=8 used=10\nprocess gpu=0 slot=2 pid=9 used=60\n"
)
Machine = Callable[..., Any]


P42 = "process gpu=0 pid=42 used=200\n"


def test_new_driver_reports_everything(nvml_machine: Machine) -> None:
    reading = nvml_machine(TWO_GPUS + P42 + "process gpu=0 pid=43 used=90\n").read()
    assert (reading.time, reading.driver_version, reading.problems) == (1.7e9, "550.54.15", ())
    assert reading.devices == (
        Device(0, "GPU-aaaa", "NVIDIA H200", Memory(1000, 690, 300, 10), {42: 200, 43: 90}),
        Device(1, "GPU-bbbb", "NVIDIA H200", Memory(2000, 1480, 500, 20), {}),
    )


@pytest.mark.parametrize(
    ("generation", "processes"),
    [(2, {42: 200}), (1, None)],
    ids=["without memory v2", "before MIG: no list of processes"],
)
def test_old_driver_counts_reserved_as_used(nvml_machine: Machine, generation: int, processes: Any) -> None:
    reading = nvml_machine(DRIVER + GPU_0 + P42, generation=generation).read()
    assert reading.devices == (Device(0, "GPU-aaaa", "NVIDIA H200", Memory(1000, 690, 310, None), processes),)
    assert reading.problems == ()


@pytest.mark.parametrize(
    ("listed", "processes"),
    [
        (P42 + "process gpu=0 pid=42 used=200 graphics=1\n", {42: 200}),
        ("process gpu=0 pid=42\nprocess gpu=0 pid=43 graphics=1 used=5\n", {42: None, 43: 5}),
    ],
    ids=["in both lists", "hidden figure"],
)
def test_process_is_listed_once(nvml_machine: Machine, listed: str, processes: Any) -> None:
    assert nvml_machine(TWO_GPUS + listed).read().devices[0].processes == processes


@pytest.mark.parametrize(
    "machine",
    [DRIVER + GPU_0.replace("name", "mig=1 name"), MIG + "error call=nvmlDeviceGetGpuInstanceId code=6\n"],
    ids=["no instances", "instances lost during the reading"],
)
def test_mig_mode_without_instances_shows_the_gpu(nvml_machine: Machine, machine: str) -> None:
    (device,) = nvml_machine(machine).read().devices
    assert (device.instances, device.memory) == ((), Memory(1000, 690, 300, 10))


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (DRIVER, "NVML finds no GPU"),
        (f"{TWO_GPUS}error call=nvmlInitWithFlags code=999\n", "container has lost its GPU devices"),
        *(
            (f"{TWO_GPUS}error call={call} code=1\n", FAULTS["UNINITIALIZED"].text)
            for call in ("nvmlSystemGetDriverVersion", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode")
        ),
    ],
    ids=["no GPU", "unknown error", "lost at version", "lost at UUID", "lost at MIG mode"],
)
def test_driver_without_answer_gives_a_reason(nvml_machine: Machine, machine: str, reason: str) -> None:
    answer = nvml_machine(machine).collect()
    assert (answer.value, answer.result.success) == (None, False)
    assert reason in answer.result.reason
    assert answer.result.duration_seconds > 0


def test_figures_the_machine_lacks_are_no_problem(nvml_machine: Machine) -> None:
    calls = ("nvmlDeviceGetMemoryInfo gpu=0", "nvmlDeviceGetMemoryInfo_v2 gpu=0", "nvmlSystemGetDriverVersion")
    reading = nvml_machine(TWO_GPUS + "".join(f"error call={call} code=3\n" for call in calls)).read()
    assert [device.memory is None for device in reading.devices] == [True, False]
    assert (reading.driver_version, reading.problems) == (None, ())


def test_mig_memory_is_reported_once_per_instance(nvml_machine: Machine) -> None:
    reading = nvml_machine(MIG).read()
    assert reading.pids == {7, 8, 9}
    (device,) = reading.devices
    assert device == Device(
        0,
        "GPU-aaaa",
        "NVIDIA H100",
        memory=None,
        processes=None,
        instances=(
            Instance(3, ("MIG-3333",), "1g.10gb+me", Memory(200, 138, 60, 2), {9: 60}),
            Instance(5, ("MIG-1111", "MIG-2222"), "2g.20gb", Memory(400, 346, 50, 4), {7: 30, 8: 10}),
        ),
    )


def test_container_with_mig_devices_may_not_read_their_gpu(nvml_machine: Machine) -> None:
    """The driver lists the GPU and answers what it is, but neither its memory nor its processes."""
    calls = ["nvmlDeviceGetMemoryInfo", *PROCESS_LISTS]
    rules = [f"error call={call}{suffix} whole=1 code=4\n" for call in calls for suffix in ("", "_v2", "_v3")]
    reading = nvml_machine(MIG + "".join(rules)).read()
    assert reading == nvml_machine(MIG).read()
    assert reading.problems == ()
    shown = join([], reading, visible_processes(reading.pids)).devices
    assert [(view.uuid, view.parent_uuid, view.mig_profile, view.size) for view in shown] == [
        ("MIG-1111", "GPU-aaaa", "2g.20gb", 400),
        ("MIG-3333", "GPU-aaaa", "1g.10gb+me", 200),
    ]


def test_gpu_whose_mig_devices_belong_to_others_has_no_figures(nvml_machine: Machine) -> None:
    parent = next(line for line in MIG.splitlines() if line.startswith("gpu"))
    rules = [f"error call=nvmlDeviceGetMemoryInfo{suffix} code=4\n" for suffix in ("", "_v2")]
    reading = nvml_machine(f"{DRIVER}{parent}\n" + "".join(rules)).read()
    (device,) = reading.devices
    assert (device.memory, device.instances) == (None, ())
    assert reading.problems == (Problem(0, f"memory: {FAULTS['NO_PERMISSION'].text}", lost=False),)


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo_v2", "*"])
def test_lost_gpu_does_not_hide_the_other(nvml_machine: Machine, call: str) -> None:
    answer = nvml_machine(f"{TWO_GPUS}error call={call} gpu=1 code=15\n").collect()
    assert [device.uuid for device in answer.value.devices] == ["GPU-aaaa"]
    assert answer.value.problems == (Problem(1, FAULTS["GPU_IS_LOST"].text, lost=True),)
    assert not answer.result.success
    assert answer.result.reason == f"GPU 1: {FAULTS['GPU_IS_LOST'].text}"


def test_forbidden_figure_is_noted_once(nvml_machine: Machine) -> None:
    forbidden = "".join(f"error call=nvmlDeviceGetMemoryInfo{version} gpu=0 code=4\n" for version in ("", "_v2"))
    answer = nvml_machine(TWO_GPUS + forbidden).collect()
    assert [device.memory is None for device in answer.value.devices] == [True, False]
    assert answer.result.success
    assert answer.result.reason == f"GPU 0: memory: {FAULTS['NO_PERMISSION'].text}"


def test_unknown_error_code_hides_one_gpu(nvml_machine: Machine) -> None:
    reading = nvml_machine(f"{TWO_GPUS}error call=nvmlDeviceGetName gpu=0 code=77\n").read()
    assert [device.uuid for device in reading.devices] == ["GPU-bbbb"]
    assert "NVML error 77" in reading.problems[0].text


@pytest.mark.parametrize("gpu", [0, 1])
def test_name_that_is_not_utf8_hides_nothing(nvml_machine: Machine, gpu: int) -> None:
    nvml = nvml_machine(TWO_GPUS)
    lines = TWO_GPUS.encode().splitlines(keepends=True)
    lines[1 + gpu] = lines[1 + gpu].replace(b"NVIDIA H200", b"\xf8\x8a\xfb\xc7")
    nvml.describe(b"".join(lines))
    answer = nvml.collect()
    assert answer.result.success
    assert [device.memory for device in answer.value.devices] == [
        Memory(1000, 690, 300, 10),
        Memory(2000, 1480, 500, 20),
    ]
    assert answer.value.devices[gpu].name == "\ufffd" * 4


@pytest.mark.parametrize("what", ["nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode"])
def test_unexpected_error_in_one_figure_stays_there(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TypeError("broken binding")

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    for name in ("nvmlDeviceGetUUID", "nvmlDeviceGetName"):
        monkeypatch.setattr(pynvml, name, lambda handle: "x")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", lambda handle: (0, 0))
    memory = SimpleNamespace(total=10, free=5, used=5)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle, *version: memory)
    for name in PROCESS_LISTS:
        monkeypatch.setattr(pynvml, f"{name}_v3", lambda handle: [])
    monkeypatch.setattr(pynvml, what, fail)
    gpu = _Gpu(0)
    device = gpu.read()
    assert device is not None
    assert (device.name is None, device.memory is None) == (what == "nvmlDeviceGetName", "Memory" in what)
    assert ["broken binding" in problem.text for problem in gpu.problems] == [True]


def test_size_of_zero_is_absent(nvml_machine: Machine) -> None:
    answer = nvml_machine(TWO_GPUS.replace("total=1000 reserved=10 used=300", "total=0 reserved=0 used=0")).collect()
    assert [device.memory for device in answer.value.devices] == [None, Memory(2000, 1480, 500, 20)]
    assert answer.result.reason == "GPU 0: memory: the driver reports a size of 0 bytes"


def test_no_library_gives_a_reason(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()  # hides a real one
    script = "from gpufrag.sidecar.nvml import Collector; print(Collector(60).collect().result.reason)"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == FAULTS["LIBRARY_NOT_FOUND"].text


def test_driver_reload_initialises_nvml_again(nvml_machine: Machine) -> None:
    nvml = nvml_machine(TWO_GPUS)
    nvml.read()
    nvml.describe(TWO_GPUS + "error call=nvmlDeviceGetCount_v2 code=9\nerror call=nvmlInitWithFlags code=9\n")
    for _ in range(2):
        with pytest.raises(Unavailable, match="driver is not loaded"):
            nvml.read()
    nvml.describe(TWO_GPUS.replace("550.54.15", "580.1"))
    assert nvml.read().driver_version == "580.1"


def test_nvml_is_initialised_once(nvml_machine: Machine) -> None:
    nvml = nvml_machine(TWO_GPUS)
    for _ in range(3):
        nvml.read()
    assert nvml.calls("nvmlInitWithFlags") == 1


def test_lost_gpu_initialises_nvml_once_a_minute(nvml_machine: Machine) -> None:
    nvml = nvml_machine(f"{TWO_GPUS}error call=* gpu=1 code=15\n")
    for _ in range(3):
        nvml.read()
    assert nvml.calls("nvmlInitWithFlags") == 1
    nvml.pass_time(61)
    for _ in range(3):
        nvml.read()
    assert nvml.calls("nvmlInitWithFlags") == 2
    assert nvml.calls("nvmlShutdown") == 1


def test_hung_driver_does_not_hang_a_scrape(nvml_machine: Machine, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    nvml = nvml_machine(TWO_GPUS)
    fresh = nvml.collect(deadline=1.0)
    threads = nvml.threads()
    nvml.describe(f"{TWO_GPUS}hang call=nvmlDeviceGetName gpu=1 fifo={fifo}\n")
    stale = [nvml.collect() for _ in range(5)]
    assert all(answer.value == fresh.value and not answer.result.success for answer in stale)
    assert "no answer from nvml within" in stale[-1].result.reason
    assert nvml.threads() == threads

    nvml.describe(TWO_GPUS.replace("550", "580"))
    fifo.open("w").close()  # lets the call return
    assert _until_success(nvml).value.driver_version == "580.54.15"
    assert nvml.threads() == threads


def test_driver_that_hangs_at_start_gives_no_figures(nvml_machine: Machine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    nvml = nvml_machine(f"{TWO_GPUS}hang call=nvmlInitWithFlags fifo={tmp_path / 'fifo'}\n")
    answer = nvml.collect(deadline=0.1)
    assert (answer.value, answer.result.success, answer.result.duration_seconds) == (None, False, None)


def _until_success(nvml: Any) -> Any:
    """The call that hung must first end; each `collect` waits for that up to its deadline."""
    end = time.monotonic() + 60
    while not (answer := nvml.collect()).result.success:
        assert time.monotonic() < end
        time.sleep(0.01)
    return answer


NAMES = {name.removeprefix("NVML_ERROR_") for name in dir(pynvml) if name.startswith("NVML_ERROR_")}
ALL_FAULTS = [*FAULTS.values(), NO_GPU, UNKNOWN_AT_INIT, unknown(77)]


def test_texts_and_pynvml_errors_correspond() -> None:
    newer_than_the_oldest_pynvml = {"GPU_NOT_FOUND", "INVALID_STATE", "RESET_TYPE_NOT_SUPPORTED"}
    assert NAMES - FAULTS.keys() == set()
    assert FAULTS.keys() - NAMES - newer_than_the_oldest_pynvml == set()


@pytest.mark.parametrize("fault", ALL_FAULTS)
def test_text_is_one_line_without_error_names(fault: Fault) -> None:
    assert len(fault.text) > 15
    assert not re.search(r"\n|NVML_ERROR|\.$", fault.text)


def test_only_reading_calls_are_used() -> None:
    source = (Path(gpufrag.__file__).parent / "sidecar/nvml.py").read_text()
    called = set(re.findall(r"\bnvml[A-Z]\w+", source)) - {"nvmlInit", "nvmlShutdown", "nvmlMemory_v2"}
    assert called
    assert [name for name in called if not re.match(r"nvml(Device|System)Get", name)] == []
