"""Torch's event history, switched on for one step at a time.

The history belongs to the user. It is used only while nothing else uses it; if the program starts or stops it during
our recording, the program's call takes effect and ours ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...wire.error_counter import ErrorCounter
from ...wire.threads import start_thread
from ..step_recorder import HISTORY_IN_USE, UNSUPPORTED
from .api import REFUSALS, TorchSurface

RECORD = "cuda.memory._record_memory_history"
ENABLED = "_C._cuda_isHistoryEnabled"
CALLS = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")
"""What every Python call that starts or stops the history ends in."""
REMOVES_CALLBACKS = (2, 8)
"""Before, the first call in a process left a callback for every operator in the thread that made it, for good. Since
then torch removes its callback with the history, and prints a warning if that happens in another thread, unless the
callback is global."""


class EventHistory:
    """The caller serialises `start` and `stop`."""

    def __init__(self, surface: TorchSurface, errors: ErrorCounter) -> None:
        self._surface, self._errors = surface, errors
        self._wrapped: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self._prepared = False
        self.recording = False
        """Whether a recording of ours is underway."""

    def in_use(self) -> bool:
        """Whether anything but this class records."""
        return self._enabled() and not self.recording

    def start(self, max_events: int, stacks: bool = False) -> str | None:
        """Record from now on, with Python stacks of allocations if wanted. Returns None, or why not."""
        record = self._surface.find(RECORD)
        if record is None or self._surface.find(ENABLED) is None or not self._prepare(record):
            return UNSUPPORTED
        if self._enabled():
            return HISTORY_IN_USE
        try:
            form = {"global_record_annotations": True} if self._surface.release >= REMOVES_CALLBACKS else {}
            context = "alloc" if stacks else None
            record(enabled="all", context=context, stacks="python", max_entries=max_events, **form)
        except REFUSALS as error:
            self._errors.note(f"torch.{RECORD}", error, "peaks are absent")
            return UNSUPPORTED
        self.recording = True
        self._watch_calls()
        return None

    def stop(self) -> None:
        """End our recording, if it is still ours."""
        if not self.recording:
            return
        self.forget()
        record = self._surface.find(RECORD)
        if record is not None and self._enabled():
            try:
                record(enabled=None)
            except REFUSALS as error:
                self._errors.note(
                    f"torch.{RECORD}",
                    error,
                    "torch keeps recording; stop it with torch.cuda.memory._record_memory_history(enabled=None)",
                )

    def forget(self) -> None:
        """Drop our recording without a call into torch, as a forked child must."""
        self.recording = False
        module = self._surface.value("_C")
        for name, (wrapper, original) in self._wrapped.items():
            if getattr(module, name, None) is wrapper:
                setattr(module, name, original)
        self._wrapped.clear()

    def _enabled(self) -> bool:
        return bool(self._surface.ask("cuda.is_initialized") and self._surface.ask(ENABLED))

    def _prepare(self, record: Callable[..., Any]) -> bool:
        """Make the first call in a thread that ends at once, where torch leaves something in its thread."""
        if self._prepared or self._surface.release >= REMOVES_CALLBACKS:
            return True
        if not self._enabled():
            try:
                thread = start_thread(self._first_call, "gpufrag-history", record)
            except RuntimeError:
                return False
            thread.join()
            self._prepared = True
        return True

    def _first_call(self, record: Callable[..., Any]) -> None:
        try:
            record(enabled=None)
        except REFUSALS as error:
            self._errors.note(f"torch.{RECORD}", error, "peaks are absent")

    def _watch_calls(self) -> None:
        module = self._surface.value("_C")
        for name in CALLS:
            if (original := getattr(module, name, None)) is not None:
                wrapper = self._giving_way_to(original)
                self._wrapped[name] = wrapper, original
                setattr(module, name, wrapper)

    def _giving_way_to(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.recording:
                try:
                    self.stop()
                except BaseException as error:  # the program's own call must go through
                    self._errors.note("history", error, "the program's recording may contain older events")
            return original(*arguments, **named)

        return call
