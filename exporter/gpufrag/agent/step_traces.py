"""Records some steps on request (`gpufrag record`): torch's own snapshot with its trace."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ..errors import Unavailable
from .sources import RecordsTraces, Source
from .step_recorder import HISTORY_IN_USE

MAX_TRACE_EVENTS = 1_000_000
"""About 150 MB of host memory in torch; a request for more steps than fit loses its oldest events."""
MAX_STEPS = 1000
_REFUSALS = {HISTORY_IN_USE: "the process records its memory history itself: dump that with torch, or stop it first"}
_UNSUPPORTED = "this torch, or its allocator, has no event history"


class _Request:
    def __init__(self, steps: int, stacks: bool) -> None:
        self.steps, self.stacks = steps, stacks
        self.steps_left: int | None = None
        """None before the recording has begun."""
        self.done = threading.Event()
        self.snapshot: Mapping[str, Any] | None = None
        self.failure = "the program started or stopped its own memory history meanwhile"


class StepTraces:
    """`record` is called in a thread of the control socket, `boundary` in the program's thread at each step."""

    def __init__(self, source: Source) -> None:
        self._source = source if isinstance(source, RecordsTraces) else None
        self._lock = threading.RLock()  # a signal handler of the program may run in here
        self._request: _Request | None = None

    @property
    def pending(self) -> bool:
        return self._request is not None

    def record(self, steps: int, stacks: bool, timeout: float) -> Mapping[str, Any]:
        """Return torch's snapshot after the next `steps` steps, with their trace. Raises Unavailable."""
        if self._source is None:
            raise Unavailable(_UNSUPPORTED)
        with self._lock:
            if self._request is not None:
                raise Unavailable("another request already records steps of this process")
            request = self._request = _Request(steps, stacks)
        if not request.done.wait(timeout):
            self._end(request, read=False)
            raise Unavailable(f"{steps} steps did not end within {timeout:g} s; check that this process trains")
        if request.snapshot is None:
            raise Unavailable(request.failure)
        return request.snapshot

    def boundary(self) -> None:
        """A step has ended while a request is pending."""
        request = self._request
        if request is None or self._source is None:
            return
        if request.steps_left is None:
            refusal = self._source.start_trace(MAX_TRACE_EVENTS, request.stacks)
            if refusal is not None:
                request.failure = _REFUSALS.get(refusal, _UNSUPPORTED)
                self._end(request, read=False)
            request.steps_left = request.steps
            return
        request.steps_left -= 1
        if request.steps_left <= 0:
            self._end(request, read=True)

    def _end(self, request: _Request, read: bool) -> None:
        with self._lock:
            if self._request is not request or self._source is None:
                return
            self._request = None
            if request.steps_left is not None:
                request.snapshot = self._source.finish_trace(read)
        request.done.set()
