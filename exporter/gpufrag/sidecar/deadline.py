"""Run work that may hang, for callers that must not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..errors import GpufragError
from ..metrics.view import CollectorResult
from ..units import format_duration

T = TypeVar("T")


@dataclass(frozen=True)
class Latest(Generic[T]):
    """The latest value, or None if there is none or it is too old; `result` has its age or the reason."""

    value: T | None
    result: CollectorResult


@dataclass(frozen=True)
class _Attempt(Generic[T]):
    value: T | None
    ended: float
    result: CollectorResult


class DeadlineWorker(Generic[T]):
    """Runs `work` in its own thread, one call at a time; `ask` waits at most `deadline` seconds.

    While a call hangs, no other is started, and `ask` returns the last value until it is `keep` seconds old.
    `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], T],
        deadline: float = 3.0,
        keep: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._work, self._keep, self._clock = name, work, keep, clock
        self.deadline = deadline
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._running_since: float | None = None
        self._finished = 0
        self._last: _Attempt[T] | None = None
        self._closed = False

    def ask(self) -> Latest[T]:
        """Return a fresh value, or an old one that is marked as such. Simultaneous callers share one call."""
        with self._changed:
            if self._running_since is None:
                self._running_since = self._clock()
                if self._thread is None:  # a daemon: a hung call must not delay the exit
                    self._thread = threading.Thread(target=self._run, name=f"gpufrag-{self._name}", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
            finished = self._finished
            timeout = max(0.0, self._running_since + self.deadline - self._clock())
            if self._changed.wait_for(lambda: self._finished > finished, timeout) and self._last is not None:
                return Latest(self._last.value, self._last.result)
            return self._overdue()

    @property
    def hangs(self) -> bool:
        """Whether a call has been running for longer than the deadline."""
        since = self._running_since
        return since is not None and self._clock() - since > self.deadline

    def replace_work(self, work: Callable[[], T], deadline: float) -> None:
        """Use other work from the next call on."""
        with self._changed:
            self._work, self.deadline = work, deadline

    def close(self) -> None:
        """End the thread after its present call; nothing can end a call that hangs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._running_since is not None)
                if self._closed:
                    return
            attempt = self._attempt()
            with self._changed:
                self._last, self._running_since = attempt, None
                self._finished += 1
                self._changed.notify_all()

    def _attempt(self) -> _Attempt[T]:
        begun = self._clock()
        value, reason = None, None
        try:
            value = self._work()
        except GpufragError as error:
            reason = str(error)
        except Exception as error:  # the thread must go on
            reason = f"internal error while reading {self._name} ({type(error).__name__}: {error})"
        ended = self._clock()
        return _Attempt(value, ended, CollectorResult(reason is None, ended - begun, reason))

    def _overdue(self) -> Latest[T]:
        """The reason contains no elapsed time: it becomes a label, and each text would be a new series."""
        reason = f"no answer from {self._name} within {format_duration(self.deadline)}"
        last = self._last
        took = None if last is None else last.result.duration_seconds
        if last is None or last.value is None:
            return Latest(None, CollectorResult(False, took, reason))
        shown = self._clock() - last.ended <= self._keep
        keep = format_duration(self._keep)
        reason += f"; its last values are {f'shown for {keep}' if shown else f'older than {keep} and no longer shown'}"
        return Latest(last.value if shown else None, CollectorResult(False, took, reason))
