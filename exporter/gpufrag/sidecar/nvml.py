"""NVML, read through pynvml; no other module uses it. It only reads: no mode of any GPU is ever changed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import pynvml

from .deadline import Answer, Worker
from .nvml_errors import FAULTS, NO_GPU, NvmlError, Scope, unknown
from .readings import Device, Instance, Memory, NvmlReading, Problem

T = TypeVar("T")
Handle = Any  # pynvml's own pointer type

REOPEN_SECONDS = 60.0
"""How often NVML is initialised anew in the hope that a lost GPU is back."""
PROCESS_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
NAMES = {getattr(pynvml, name): name.removeprefix("NVML_ERROR_") for name in dir(pynvml) if name.startswith("NVML_ERR")}


class Collector:
    """NVML for scrapes: `collect` takes no longer than `deadline` seconds whatever the driver does."""

    def __init__(self, deadline: float = 3.0, read: Callable[[], NvmlReading] | None = None) -> None:
        self._worker = Worker("nvml", read or Session().read, deadline)

    def collect(self) -> Answer[NvmlReading]:
        """The reading, or None with the reason; a reading in which a GPU is lost is a failure that has a value."""
        answer = self._worker.ask()
        if answer.value is None or not answer.value.problems or not answer.result.success:
            return answer
        problems = answer.value.problems
        reason = "; ".join(f"GPU {problem.index}: {problem.text}" for problem in problems)
        healthy = not any(problem.lost for problem in problems)
        return replace(answer, result=replace(answer.result, success=healthy, reason=reason))

    def close(self) -> None:
        self._worker.close()


class Session:
    """NVML initialised once, and again after a driver was reloaded or a GPU was lost. For one thread."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._opened: float | None = None

    def read(self) -> NvmlReading:
        """Everything that NVML tells now. Raises NvmlError where it tells nothing at all."""
        if self._opened is None:
            _call(pynvml.nvmlInit)
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
        with suppress(NvmlError):  # what cannot be shut down is gone already
            _call(pynvml.nvmlShutdown)


def _read(now: float) -> NvmlReading:
    count = _call(pynvml.nvmlDeviceGetCount)
    if not count:
        raise NvmlError(NO_GPU)
    driver_version = _driver_version()
    gpus = [_Gpu(index) for index in range(count)]
    devices = tuple(device for gpu in gpus if (device := gpu.read()) is not None)
    return NvmlReading(now, driver_version, devices, tuple(problem for gpu in gpus for problem in gpu.problems))


def _driver_version() -> str | None:
    try:
        return str(_call(pynvml.nvmlSystemGetDriverVersion))
    except NvmlError as error:
        if error.scope is Scope.DRIVER:
            raise
        return None


class _Gpu:
    """One GPU while it is being read; collects what it does not tell."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.problems: list[Problem] = []

    def read(self) -> Device | None:
        """None where it does not answer. Raises NvmlError where NVML as a whole does not."""
        try:
            handle = _call(pynvml.nvmlDeviceGetHandleByIndex, self._index)
            uuid = _call(pynvml.nvmlDeviceGetUUID, handle)
            name = self._figure("name", pynvml.nvmlDeviceGetName, handle)
            instances = tuple(self._instances(handle))
            # From inside a container with one MIG device, the whole GPU is forbidden: it is not asked without need.
            memory = None if instances else self._memory(handle)
            processes = None if instances else self._processes(handle)
            return Device(self._index, uuid, name, memory, processes, instances)
        except NvmlError as error:
            if error.scope is Scope.DRIVER:
                raise
            self.problems.append(Problem(self._index, str(error), error.scope is Scope.DEVICE))
            return None

    def _figure(self, what: str, function: Callable[..., T], *arguments: Any) -> T | None:
        """None where this one figure is not to be had. Raises NvmlError where more is lost than that."""
        try:
            return _call(function, *arguments)
        except NvmlError as error:
            if error.scope not in (Scope.FIGURE, Scope.ABSENT):
                raise
            problem = Problem(self._index, f"{what}: {error}", lost=False)
            if error.scope is Scope.FIGURE and problem not in self.problems:
                self.problems.append(problem)
            return None

    def _memory(self, handle: Handle) -> Memory | None:
        """By the second version of the question, which tells reserved apart, or by the first on an older driver."""
        second = self._figure("memory", pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        if second is not None:
            return Memory(second.total, second.free, second.used, second.reserved)
        first = self._figure("memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
        return None if first is None else Memory(first.total, first.free, first.used, None)

    def _processes(self, handle: Handle) -> dict[int, int | None] | None:
        """Bytes by pid. A process that computes and draws is in both lists with one and the same figure."""
        lists = [self._process_list(name, handle) for name in PROCESS_LISTS]
        if all(entries is None for entries in lists):
            return None
        found: dict[int, int | None] = {}
        for entry in (entry for entries in lists for entry in entries or ()):
            found[entry.pid] = _larger(found.get(entry.pid), entry.usedGpuMemory)
        return found

    def _process_list(self, name: str, handle: Handle) -> list[Any] | None:
        """By the newest version that both this pynvml and the driver have."""
        versions = (getattr(pynvml, name + suffix, None) for suffix in ("_v3", "_v2"))
        answers = (self._figure("processes", function, handle) for function in versions if function is not None)
        return next((answer for answer in answers if answer is not None), None)

    def _instances(self, gpu: Handle) -> Iterator[Instance]:
        """The GPU instances, each once however many compute instances (MIG devices) share it."""
        by_id: dict[int, list[Handle]] = {}
        for handle in self._mig_devices(gpu):
            instance = self._figure("GPU instance", pynvml.nvmlDeviceGetGpuInstanceId, handle)
            if instance is not None:
                by_id.setdefault(instance, []).append(handle)
        for instance, handles in sorted(by_id.items()):
            uuids = [self._figure("MIG UUID", pynvml.nvmlDeviceGetUUID, handle) for handle in handles]
            name = self._figure("MIG name", pynvml.nvmlDeviceGetName, handles[0])
            memory = self._memory(handles[0])
            processes = _merged([self._processes(handle) for handle in handles])
            if known := tuple(uuid for uuid in uuids if uuid is not None):
                yield Instance(instance, known, _profile(name), memory, processes)

    def _mig_devices(self, gpu: Handle) -> list[Handle]:
        mode = self._figure("MIG mode", pynvml.nvmlDeviceGetMigMode, gpu)
        if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return []
        slots = self._figure("MIG devices", pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0
        get = pynvml.nvmlDeviceGetMigDeviceHandleByIndex
        handles = (self._figure("MIG devices", get, gpu, slot) for slot in range(slots))
        return [handle for handle in handles if handle is not None]


def _call(function: Callable[..., T], *arguments: Any) -> T:
    """The one door to pynvml: its errors become ours here. Raises NvmlError."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        code: int = error.value
        name = NAMES.get(code)
        raise NvmlError(FAULTS.get(name or "") or unknown(code)) from error


def _merged(lists: list[dict[int, int | None] | None]) -> dict[int, int | None] | None:
    known = [processes for processes in lists if processes is not None]
    return {pid: used for processes in known for pid, used in processes.items()} if known else None


def _larger(one: int | None, other: int | None) -> int | None:
    known = [used for used in (one, other) if used is not None]
    return max(known, default=None)


def _profile(name: str | None) -> str | None:
    """`1g.10gb+me` of `NVIDIA H100 MIG 1c.1g.10gb+me`: the GPU instance's part of a MIG device's name."""
    found = re.search(r"\b(\d+g\.\d+gb\S*)", name or "")
    return found and found.group(1)
