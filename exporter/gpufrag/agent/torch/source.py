"""PyTorch in this process, CUDA and ROCm alike.

Nothing here initialises CUDA or creates a context: each function is called only after the process has done so itself.
The native allocator's statistics, snapshot and history, and the driver's memory figures, are safe while another
thread captures a CUDA graph; cudaMallocAsync's statistics are not, and are read between steps. A torch without one of
the functions provides everything else.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from ...model import call_sites
from ...model.call_sites import Sites
from ...model.heap import parse
from ...model.step import step_events
from ...wire.defragmentation import Defragmentations, DefragmentOptions, Result
from ...wire.error_counter import ErrorCounter
from ...wire.sample import Counters, DriverReading, Sums, Totals
from ..sources import Capture, DeviceFacts, DeviceReading, Fault, Live
from ..step_recorder import HISTORY_IN_USE, NOT_YET, UNSUPPORTED
from . import devices as torch_devices
from . import snapshot as torch_snapshot
from . import stats as torch_stats
from .api import REFUSALS, TorchSurface
from .history import EventHistory
from .nvtx import NvtxRanges

ASYNC = "cudaMallocAsync"
LONG_PROBE = 0.001
"""Seconds. Statistics are copied in microseconds; a longer reading waited for the allocator's lock."""
ASYNC_INTERVAL = 1.0
"""Seconds between two readings of the driver's allocator."""
NEEDS_INDUCTOR = (2, 8)
"""Since then torch imports torch._inductor to resolve stacks: seconds in a program that has not imported it."""
TRACE_IS_OPTIONAL = (2, 11)
"""Before, every snapshot contains the whole trace."""
AFFORDABLE_EVENTS = 10_000
"""Of a history that the program records: one with stacks takes about 7 us per event to read."""
EVENTS_PER_ALLOCATION = 3
"""The allocation, the request to free it, and its completion."""
ATTACH_OBSERVER = "_C._cuda_attach_out_of_memory_observer"
OBSERVES_EVERY_DEVICE = (2, 6)
"""Before, torch gave the observer to device 0 alone, and an OOM on another device raised a different error."""


class TorchSource:
    """`torch` is the module that the process has imported itself."""

    framework = "torch"

    def __init__(self, torch: ModuleType, errors: ErrorCounter, environment: Mapping[str, str] = os.environ) -> None:
        self._torch = torch
        self._surface, self._errors, self._environment = TorchSurface(torch, errors), errors, environment
        self._history = EventHistory(self._surface, errors)
        self._nvtx = NvtxRanges(self._surface, errors, environment.get("GPUFRAG_NVTX") == "1")
        self._counters: dict[int, torch_stats.CounterMemory] = {}
        self._async_at = -math.inf
        self._async: dict[int, torch_stats.Stats] = {}
        self._allocations_before = self._max_events = 0
        self._active_before: dict[int, int] = {}
        self._borrowed = False
        """Whether the recording underway is the program's own."""
        self._allocations_when_off = 0
        """Allocations when no history was last seen: the program's has only later events."""
        self._on_step: Callable[[object], None] | None = None
        self._on_oom: Callable[[Fault], None] | None = None

    @property
    def framework_version(self) -> str:
        """Torch's own, with the ROCm version added if it does not contain it."""
        version, rocm = self._surface.version, self._surface.value("version.hip")
        return version if not rocm or "rocm" in version else f"{version}{'.' if '+' in version else '+'}rocm{rocm}"

    def facts(self, device: int) -> DeviceFacts:
        return torch_devices.facts(self._surface, device, self._environment)

    def read(self) -> Sequence[DeviceReading]:
        with self._nvtx.range("sample"):
            readings = [self._read(device) for device in torch_devices.in_use(self._surface)]
        return [reading for reading in readings if reading is not None]

    def capture(self) -> Capture | None:
        with self._nvtx.range("snapshot"):
            return self._copy(events=False)

    def live(self, device: int) -> Live | None:
        stats = self._native_stats(device)
        return torch_stats.live(stats) if stats else None

    def history_in_use(self) -> bool:
        return self._history.in_use()

    def start_recording(self, max_events: int) -> str | None:
        if not self._surface.ask("cuda.is_initialized"):
            return NOT_YET
        if self._backend() != "native":
            return UNSUPPORTED
        stats = {device: self._native_stats(device) for device in tuple(self._counters)}
        self._allocations_before, self._max_events = sum(map(torch_stats.allocations, stats.values())), max_events
        active = {device: torch_stats.active(found) for device, found in stats.items()}
        self._active_before = {device: size for device, size in active.items() if size is not None}
        refusal = self._history.start(max_events)
        if refusal is None:
            self._nvtx.recording_started()
            self._allocations_when_off = self._allocations_before
        elif refusal == HISTORY_IN_USE and self._may_borrow():
            # the snapshot marks the beginning of the step in the program's history
            self._borrowed = torch_snapshot.take(self._surface, self._errors) is not None
            return None if self._borrowed else refusal
        return refusal

    def _may_borrow(self) -> bool:
        """Whether reading the program's history is affordable."""
        events = EVENTS_PER_ALLOCATION * (self._allocations_before - self._allocations_when_off)
        return (
            self._surface.release >= TRACE_IS_OPTIONAL
            and self._surface.loaded("_inductor")
            and 0 <= events <= AFFORDABLE_EVENTS
        )

    def recorded_events(self) -> int | None:
        if not self._history.in_use() if self._borrowed else not self._history.recording:
            return None
        return EVENTS_PER_ALLOCATION * (self._allocations() - self._allocations_before)

    def finish_recording(self, read: bool) -> Capture | None:
        borrowed, self._borrowed = self._borrowed, False
        if borrowed:
            affordable = EVENTS_PER_ALLOCATION * (self._allocations() - self._allocations_when_off) < AFFORDABLE_EVENTS
            return self._copy(events=affordable, borrowed=True) if read else None
        self._nvtx.recording_ended()
        with self._nvtx.range("reading of a step recording"):
            capture = self._copy(events=True) if read and self._history.recording else None
            self._history.stop()
        return capture

    def start_trace(self, max_events: int, stacks: bool) -> str | None:
        if not self._surface.ask("cuda.is_initialized") or self._backend() != "native":
            return UNSUPPORTED
        return self._history.start(max_events, stacks)

    def finish_trace(self, read: bool) -> Mapping[str, Any] | None:
        own = read and self._history.recording
        snapshot = torch_snapshot.take(self._surface, self._errors, events=True) if own else None
        self._history.stop()
        return snapshot

    def start_stacks(self) -> bool:
        if not self._surface.ask("cuda.is_initialized") or self._backend() != "native":
            return False
        if self._surface.release >= NEEDS_INDUCTOR and not self._surface.loaded("_inductor"):
            return False
        return self._history.start(1, stacks=True) is None  # blocks keep their stacks; the events are not needed

    def allocated_since(self, stop: bool) -> Callable[[], Sites] | None:
        snapshot = torch_snapshot.take(self._surface, self._errors) if self._history.recording else None
        if stop or snapshot is None:
            self._history.stop()
        return None if snapshot is None else lambda: call_sites.read(snapshot, only_recorded=True)

    def watch_steps(self, on_step: Callable[[object], None]) -> bool:
        register = self._surface.find("optim.optimizer.register_optimizer_step_post_hook")
        if register is None or self._surface.find("cuda.is_current_stream_capturing") is None:
            return False
        self._on_step = on_step
        register(self._hook)
        return True

    def defragment(self, options: DefragmentOptions) -> tuple[Result, ...]:
        from .defragment import Refused, defragment

        devices = torch_devices.in_use(self._surface)
        if not devices:
            raise Refused("no-cuda", "cannot defragment: this process uses no GPU")
        return tuple(defragment(self._torch, device, options) for device in devices)

    def defragmented(self, device: int) -> Defragmentations | None:
        mover = sys.modules.get(f"{__package__}.defragment")  # the program may have called gpufrag.defragment
        found: Defragmentations | None = mover.totals(device) if mover else None
        return found

    def graph_underway(self) -> bool:
        return self._surface.ask("cuda.is_current_stream_capturing") is not False  # an unknown state is not safe

    def watch_ooms(self, on_oom: Callable[[Fault], None]) -> bool:
        """Attach to torch's observer, which cannot be detached.

        Torch calls it in the thread whose request failed, after its flush and retry and without its lock.
        """
        self._on_oom = on_oom
        attach = self._surface.find(ATTACH_OBSERVER)
        # only if CUDA is in use or this thread initialises it now: the call would do so itself
        in_use = self._surface.ask("cuda.is_initialized") or self._surface.value("cuda._tls.is_initializing")
        if attach is None or not in_use or self._backend() != "native":
            return False
        if self._surface.release < OBSERVES_EVERY_DEVICE and self._surface.ask("cuda.device_count") != 1:
            return False
        try:
            attach(self._observer)
        except REFUSALS as error:
            self._errors.note(f"torch.{ATTACH_OBSERVER}", error, "out-of-memory errors are not explained")
            return False
        return True

    def close(self) -> None:
        # torch keeps the hook: removing it while another thread steps would break that step
        self._on_step = self._on_oom = None
        self._history.forget()

    def _hook(self, optimizer: object, args: object, kwargs: object) -> None:
        if (on_step := self._on_step) is not None:
            self._read_async_stats()
            on_step(optimizer)

    def _observer(self, device: int, size: int, total: int, free: int) -> None:
        if (on_oom := self._on_oom) is None:
            return
        try:
            self._counters.setdefault(device, torch_stats.CounterMemory())  # its first request may have failed
            with self._nvtx.range("OOM report"):
                on_oom(Fault(device, size, free))
        except BaseException as error:  # it would replace the error that the program may catch
            self._errors.note("oom", error, "this error is not explained")

    def _read_async_stats(self) -> None:
        """Asking the driver's pool breaks a capture, whichever thread asks (seen on an H200); here none is underway."""
        now = time.perf_counter()
        if (
            now - self._async_at < ASYNC_INTERVAL
            or not self._surface.ask("cuda.is_initialized")
            or self.graph_underway()
        ):
            return
        self._async_at = now
        if self._backend() == ASYNC:
            for device in torch_devices.in_use(self._surface):
                if torch_devices.has_context(self._surface, device):  # otherwise asking would create one
                    self._async[device] = self._ask_stats(device)

    def _copy(self, events: bool, borrowed: bool = False) -> Capture | None:
        if not self._surface.ask("cuda.is_initialized") or self._backend() != "native":
            return None
        foreign = self._history.in_use()
        if not foreign:
            self._allocations_when_off = self._allocations()
        # with the user's history on, torch's snapshot imports torch._inductor to resolve frames of generated code:
        # that takes seconds and can break an import of the program that is underway
        if foreign and not self._surface.loaded("_inductor"):
            return None
        began = time.perf_counter()
        for device in tuple(self._counters):
            self._stats(device)  # waits for the allocator's lock, so that the copy does not
        waited = time.perf_counter() - began
        snapshot = torch_snapshot.take(self._surface, self._errors)
        trace = torch_snapshot.take(self._surface, self._errors, events=True) if events else None
        held = time.perf_counter() - began
        if snapshot is None:
            return None
        conf = torch_snapshot.conf(snapshot, self._environment)
        settings = torch_snapshot.settings(conf, self._errors)
        stats = {device: self._stats(device) for device in tuple(self._counters)}
        limits = {device: torch_devices.limit(self._surface, device, settings) for device in stats}
        steps = None if trace is None else [_since_mark(entries, borrowed) for entries in trace["device_traces"]]
        if borrowed and steps is not None and self._allocations() - self._allocations_before != _allocations_in(steps):
            steps = None  # the program began its history anew, or another tool took a snapshot too
        full = (
            not borrowed and trace is not None and max(map(len, trace["device_traces"]), default=0) >= self._max_events
        )
        return Capture(
            heap=lambda: parse(snapshot, settings),
            readings=[r for device in stats if (r := self._reading(device, stats[device], Counters(), 0.0))],
            limits={device: limit for device, limit in limits.items() if limit is not None},
            alloc_conf=conf,
            held=held,
            waited=waited if waited > LONG_PROBE else 0.0,
            sites=(lambda: call_sites.read(snapshot)) if foreign else None,
            events=None if steps is None else lambda: {device: step_events(step) for device, step in enumerate(steps)},
            complete=not full,
            active_before={} if steps is None or full else self._active_before,
        )

    def _allocations(self) -> int:
        """On all devices."""
        return sum(torch_stats.allocations(self._native_stats(device)) for device in tuple(self._counters))

    def _backend(self) -> Any:
        return self._surface.ask("cuda.get_allocator_backend")

    def _ask_stats(self, device: int) -> torch_stats.Stats:
        return self._surface.ask("cuda.memory_stats_as_nested_dict", device) or {}

    def _native_stats(self, device: int) -> torch_stats.Stats:
        """Empty for any allocator but torch's own."""
        return self._ask_stats(device) if self._backend() == "native" else {}

    def _stats(self, device: int) -> torch_stats.Stats:
        """Empty if torch has none: not for a pluggable allocator; for the driver's, from the last step boundary."""
        return self._native_stats(device) or self._async.get(device, {})

    def _read(self, device: int) -> DeviceReading | None:
        """None for a device whose allocator has never held memory, and for one that no longer answers."""
        began = time.perf_counter()
        stats = self._stats(device)
        held = time.perf_counter() - began
        # a device that held memory once may do so again, and an allocator without figures may hold some
        if device not in self._counters and stats and not torch_stats.reserved(stats):
            return None
        counters = self._counters.setdefault(device, torch_stats.CounterMemory()).update(stats)
        return self._reading(device, stats, counters, held)

    def _reading(self, device: int, stats: torch_stats.Stats, counters: Counters, held: float) -> DeviceReading | None:
        (totals, sums), driver = self._figures(stats, counters), self._driver(device)
        return DeviceReading(device, totals, driver, held, sums) if totals or sums or driver else None

    def _figures(self, stats: torch_stats.Stats, counters: Counters) -> tuple[Totals | None, Sums | None]:
        """By pool, or the sums of both pools if the allocator has no pools."""
        if not stats:
            return None, None
        try:
            if self._backend() == ASYNC:
                return None, torch_stats.sums(stats, time.time())
            return torch_stats.totals(stats, time.time(), counters), None
        except REFUSALS as error:
            self._errors.note("torch statistics", error, "a newer gpufrag may support this torch")
            return None, None

    def _driver(self, device: int) -> DriverReading | None:
        if not torch_devices.has_context(self._surface, device):
            return None
        info = self._surface.ask("cuda.mem_get_info", device)
        return DriverReading(time.time(), free=info[0], size=info[1]) if info else None


def _since_mark(entries: Sequence[Mapping[str, Any]], from_mark: bool) -> Sequence[Mapping[str, Any]]:
    """The events up to the first of the two snapshots at the end, which left its mark: threads may have gone on.

    from_mark: only the events after the mark before, in a history that the program records.
    """
    marks = (index for index in range(len(entries) - 1, -1, -1) if entries[index]["action"] == "snapshot")
    end = next(marks, len(entries))
    return entries[next(marks, -1) + 1 if from_mark else 0 : end]


def _allocations_in(steps: Iterable[Iterable[Mapping[str, Any]]]) -> int:
    return sum(entry["action"] == "alloc" for step in steps for entry in step)
