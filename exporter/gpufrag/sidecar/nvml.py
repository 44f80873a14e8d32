"""NVML, read through pynvml; no other module imports pynvml. It only reads: no mode of any GPU is ever changed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import pynvml

from ..errors import Unavailable
from .deadline import DeadlineWorker, Latest
from .readings import Device, Instance, Memory, NvmlReading, Problem

T = TypeVar("T")
Handle = Any  # pynvml's own pointer type

REOPEN_SECONDS = 60.0
"""How often NVML is initialised again while a GPU is lost."""
UNREADABLE = "cannot be read"
PROCESS_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
NAMES = {getattr(pynvml, name): name.removeprefix("NVML_ERROR_") for name in dir(pynvml) if name.startswith("NVML_ERR")}


class Scope(Enum):
    """How much a failed call affects."""

    ABSENT = "the machine has no such figure: normal, not reported"
    FIGURE = "one figure cannot be read: reported, the rest is read"
    DEVICE = "the GPU does not answer: reported, the other GPUs are read"
    DRIVER = "nothing answers until NVML is initialised again"


class Fault(NamedTuple):
    scope: Scope
    text: str


class NvmlError(Unavailable):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.scope = fault.scope


FAULTS: Mapping[str, Fault] = {
    "LIBRARY_NOT_FOUND": Fault(
        Scope.DRIVER, "no NVML library (libnvidia-ml.so.1): normal in a container without a GPU"
    ),
    "DRIVER_NOT_LOADED": Fault(Scope.DRIVER, "the NVIDIA driver is not loaded: load it, or run on a host with a GPU"),
    "LIB_RM_VERSION_MISMATCH": Fault(
        Scope.DRIVER,
        "the NVML library and the loaded driver have different versions: restart the sidecar, or the host if a driver "
        "upgrade is not complete",
    ),
    "UNINITIALIZED": Fault(Scope.DRIVER, "NVML lost its state; it is initialised again at the next reading"),
    "OPERATING_SYSTEM": Fault(
        Scope.DRIVER, "NVML cannot open the driver: give the sidecar /dev/nvidiactl and the GPU's device file"
    ),
    "MEMORY": Fault(Scope.DRIVER, "NVML has no host memory: raise the sidecar's memory limit"),
    "INSUFFICIENT_RESOURCES": Fault(Scope.DRIVER, "NVML has not enough resources: raise the sidecar's limits"),
    "GPU_IS_LOST": Fault(Scope.DEVICE, "the GPU is lost (fell off the bus): drain the node and reset the GPU"),
    "RESET_REQUIRED": Fault(Scope.DEVICE, "the GPU must be reset: drain the node and run nvidia-smi --gpu-reset"),
    "GPU_NOT_FOUND": Fault(Scope.DEVICE, "the GPU is gone: look for its Xid in dmesg"),
    "UNKNOWN": Fault(Scope.DEVICE, "the GPU's driver failed: look for an Xid in dmesg"),
    "TIMEOUT": Fault(Scope.DEVICE, "the GPU did not answer its driver in time: look for an Xid in dmesg"),
    "IRQ_ISSUE": Fault(Scope.DEVICE, "the GPU's interrupts do not arrive: look at dmesg and check the BIOS"),
    "INSUFFICIENT_POWER": Fault(Scope.DEVICE, "the GPU has no external power: check its cables"),
    "CORRUPTED_INFOROM": Fault(Scope.FIGURE, "the GPU's infoROM is corrupted: run nvidia-smi -q, ask the vendor"),
    "NO_PERMISSION": Fault(
        Scope.FIGURE, "no permission to read it (normal for a whole GPU in a container that has a MIG device)"
    ),
    "NOT_READY": Fault(Scope.FIGURE, "the driver is not ready; it is read again next time"),
    "INVALID_STATE": Fault(Scope.FIGURE, "the GPU's present state does not allow reading it"),
    "IN_USE": Fault(Scope.FIGURE, "in use by another program; it is read again next time"),
    "INSUFFICIENT_SIZE": Fault(Scope.FIGURE, "it grew while it was read; it is read again next time"),
    "INVALID_ARGUMENT": Fault(Scope.FIGURE, "the driver rejects the call, or a MIG device was removed meanwhile"),
    "ALREADY_INITIALIZED": Fault(Scope.FIGURE, "the driver reports that NVML is already initialised"),
    "NOT_SUPPORTED": Fault(Scope.ABSENT, "the GPU has no such figure"),
    "NOT_FOUND": Fault(Scope.ABSENT, "the GPU has no such object"),
    "NO_DATA": Fault(Scope.ABSENT, "the driver has no data for it"),
    "FUNCTION_NOT_FOUND": Fault(Scope.ABSENT, "the driver is too old for it"),
    "ARGUMENT_VERSION_MISMATCH": Fault(Scope.ABSENT, "the driver does not support this version of the call"),
    "DEPRECATED": Fault(Scope.ABSENT, "the driver no longer supports this call"),
    "VGPU_ECC_NOT_SUPPORTED": Fault(Scope.ABSENT, "a virtual GPU with ECC has no such figure"),
    "FREQ_NOT_SUPPORTED": Fault(Scope.ABSENT, "the GPU has no such clock"),
    "RESET_TYPE_NOT_SUPPORTED": Fault(Scope.ABSENT, "the GPU has no such reset"),
}
"""By the name after NVML_ERROR_."""

NO_GPU = Fault(Scope.DRIVER, "NVML finds no GPU: normal in a container without one")
UNKNOWN_AT_INIT = Fault(
    Scope.DRIVER,
    "NVML cannot be initialised (unknown error 999): usually the container has lost its GPU devices, for example "
    "after a systemd daemon-reload on the host; restart the container",
)


def unknown(code: int) -> Fault:
    """For codes newer than FAULTS."""
    return Fault(Scope.DEVICE, f"NVML error {code}, which this gpufrag does not know: see NVML's manual")


class Collector:
    """NVML for scrapes: `collect` takes at most `deadline` seconds, even if the driver hangs."""

    def __init__(self, deadline: float = 3.0, read: Callable[[], NvmlReading] | None = None) -> None:
        self._worker = DeadlineWorker("nvml", read or Session().read, deadline)

    def collect(self) -> Latest[NvmlReading]:
        """Return the reading, or None with the reason. If a GPU is lost, the result is a failure with a value."""
        latest = self._worker.ask()
        if latest.value is None or not latest.value.problems or not latest.result.success:
            return latest
        problems = latest.value.problems
        reason = "; ".join(f"GPU {problem.index}: {problem.text}" for problem in problems)
        healthy = not any(problem.lost for problem in problems)
        return replace(latest, result=replace(latest.result, success=healthy, reason=reason))

    def set_deadline(self, seconds: float) -> None:
        self._worker.deadline = seconds

    def close(self) -> None:
        self._worker.close()


class Session:
    """NVML initialised once, and again after the driver was reloaded or a GPU was lost. For one thread."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._opened: float | None = None

    def read(self) -> NvmlReading:
        """Return everything that NVML reports now. Raises NvmlError if it reports nothing."""
        if self._opened is None:
            try:
                _call(pynvml.nvmlInit)
            except NvmlError as error:
                raise NvmlError(UNKNOWN_AT_INIT) if str(error) == FAULTS["UNKNOWN"].text else error from None
            self._opened = self._monotonic()
        try:
            reading = _read(self._wall())
        except NvmlError:
            self._close()
            raise
        lost = any(problem.lost for problem in reading.problems)
        if lost and self._monotonic() - self._opened >= REOPEN_SECONDS:
            self._close()
        return reading

    def _close(self) -> None:
        self._opened = None
        with suppress(NvmlError):  # it is gone already
            _call(pynvml.nvmlShutdown)


def _read(now: float) -> NvmlReading:
    count = _call(pynvml.nvmlDeviceGetCount)
    if not count:
        raise NvmlError(NO_GPU)
    try:
        driver_version = str(_call(pynvml.nvmlSystemGetDriverVersion))
    except NvmlError as error:
        if error.scope is Scope.DRIVER:
            raise
        driver_version = None
    gpus = [_Gpu(index) for index in range(count)]
    devices = tuple(device for gpu in gpus if (device := gpu.read()) is not None)
    return NvmlReading(now, driver_version, devices, tuple(problem for gpu in gpus for problem in gpu.problems))


class _Gpu:
    def __init__(self, index: int) -> None:
        self._index = index
        self.problems: list[Problem] = []

    def read(self) -> Device | None:
        """Return None if the GPU does not answer. Raises NvmlError if NVML as a whole does not."""
        try:
            handle = _call(pynvml.nvmlDeviceGetHandleByIndex, self._index)
            uuid = _call(pynvml.nvmlDeviceGetUUID, handle)
            name = self._figure("name", pynvml.nvmlDeviceGetName, handle)
            instances = tuple(self._instances(handle))
            # a container with one MIG device may not read the whole GPU
            memory = None if instances else self._memory(handle)
            processes = None if instances else self._processes(handle)
            return Device(self._index, uuid, name, memory, processes, instances)
        except NvmlError as error:
            if error.scope is Scope.DRIVER:
                raise
            self.problems.append(Problem(self._index, str(error), error.scope is Scope.DEVICE))
            return None
        except Exception as error:  # of pynvml itself; the other GPUs go on
            self.problems.append(Problem(self._index, f"{UNREADABLE} ({type(error).__name__}: {error})", lost=True))
            return None

    def _figure(self, what: str, function: Callable[..., T], *arguments: Any) -> T | None:
        """Return None if this one figure is not available. Raises NvmlError if more than the figure is."""
        try:
            return _call(function, *arguments)
        except NvmlError as error:
            if error.scope not in (Scope.FIGURE, Scope.ABSENT):
                raise
            if error.scope is Scope.FIGURE:
                self._note(what, str(error))
        except Exception as error:  # of pynvml itself
            self._note(what, f"{UNREADABLE} ({type(error).__name__}: {error})")
        return None

    def _note(self, what: str, text: str) -> None:
        problem = Problem(self._index, f"{what}: {text}", lost=False)
        if problem not in self.problems:
            self.problems.append(problem)

    def _memory(self, handle: Handle) -> Memory | None:
        """Version 2 of the call reports reserved memory separately; older drivers have version 1."""
        found = self._figure("memory", pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        if found is None:
            found = self._figure("memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
        if found is None:
            return None
        if found.total <= 0:
            self._note("memory", "the driver reports a size of 0 bytes")
            return None
        return Memory(found.total, found.free, found.used, getattr(found, "reserved", None))

    def _processes(self, handle: Handle) -> dict[int, int | None] | None:
        """Return bytes by pid. A process that computes and draws is in both lists with the same figure."""
        lists = [self._process_list(name, handle) for name in PROCESS_LISTS]
        if all(entries is None for entries in lists):
            return None
        found: dict[int, int | None] = {}
        for entry in (entry for entries in lists for entry in entries or ()):
            known = [used for used in (found.get(entry.pid), entry.usedGpuMemory) if used is not None]
            found[entry.pid] = max(known, default=None)
        return found

    def _process_list(self, name: str, handle: Handle) -> list[Any] | None:
        """Use the newest version of the call that this pynvml and the driver have."""
        versions = (getattr(pynvml, name + suffix, None) for suffix in ("_v3", "_v2"))
        answers = (self._figure("processes", function, handle) for function in versions if function is not None)
        return next((answer for answer in answers if answer is not None), None)

    def _instances(self, gpu: Handle) -> Iterator[Instance]:
        """Yield each GPU instance once, even if several compute instances (MIG devices) share it."""
        by_id: dict[int, list[Handle]] = {}
        for handle in self._mig_devices(gpu):
            instance = self._figure("GPU instance", pynvml.nvmlDeviceGetGpuInstanceId, handle)
            if instance is not None:
                by_id.setdefault(instance, []).append(handle)
        for instance, handles in sorted(by_id.items()):
            uuids = [self._figure("MIG UUID", pynvml.nvmlDeviceGetUUID, handle) for handle in handles]
            name = self._figure("MIG name", pynvml.nvmlDeviceGetName, handles[0]) or ""
            profile = re.search(r"\b\d+g\.\d+gb\S*", name)  # `1g.10gb+me` of `NVIDIA H100 MIG 1c.1g.10gb+me`
            memory = self._memory(handles[0])
            lists = [found for handle in handles if (found := self._processes(handle)) is not None]
            processes = {pid: used for found in lists for pid, used in found.items()} if lists else None
            if known := tuple(uuid for uuid in uuids if uuid is not None):
                yield Instance(instance, known, profile and profile[0], memory, processes)

    def _mig_devices(self, gpu: Handle) -> list[Handle]:
        mode = self._figure("MIG mode", pynvml.nvmlDeviceGetMigMode, gpu)
        if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return []
        slots = self._figure("MIG devices", pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0
        get = pynvml.nvmlDeviceGetMigDeviceHandleByIndex
        handles = (self._figure("MIG devices", get, gpu, slot) for slot in range(slots))
        return [handle for handle in handles if handle is not None]


def _call(function: Callable[..., T], *arguments: Any) -> T:
    """Call pynvml. Raises NvmlError."""
    try:
        return function(*arguments)
    except UnicodeDecodeError as error:  # pynvml decodes text as UTF-8, and a broken GPU may report any bytes
        return error.object.decode(errors="replace")  # type: ignore[return-value]
    except pynvml.NVMLError as error:
        code: int = error.value
        name = NAMES.get(code)
        raise NvmlError(FAULTS.get(name or "") or unknown(code)) from error
