"""Work that may never return, asked for by callers who must."""

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
class Answer(Generic[T]):
    """The latest value, or None where there is none that may still be shown; `result` says how fresh it is."""

    value: T | None
    result: CollectorResult


@dataclass(frozen=True)
class _Attempt(Generic[T]):
    """One finished call."""

    value: T | None
    ended: float
    result: CollectorResult


class Worker(Generic[T]):
    """Runs `work` in one thread of its own, one call at a time; `ask` waits for it no longer than `deadline` seconds.

    While a call hangs, no other is started, and whoever asks gets the last value until it is `keep` seconds old.
    When the call returns after all, the next one to ask starts afresh. `clock` is in seconds and never goes back.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], T],
        deadline: float = 3.0,
        keep: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._work, self._deadline, self._keep, self._clock = name, work, deadline, keep, clock
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._running_since: float | None = None
        self._finished = 0
        self._last: _Attempt[T] | None = None
        self._closed = False

    def ask(self) -> Answer[T]:
        """A value that is fresh, or old and said to be so. Asking at once from many threads makes one call."""
        with self._changed:
            begun = self._begin() if self._running_since is None else self._running_since
            finished = self._finished
            patience = max(0.0, begun + self._deadline - self._clock())
            if self._changed.wait_for(lambda: self._finished > finished, patience) and self._last is not None:
                return Answer(self._last.value, self._last.result)
            return self._overdue()

    def close(self) -> None:
        """End the thread as soon as it has control; a call that hangs is left to hang, for nothing can end it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _begin(self) -> float:
        now = self._running_since = self._clock()
        if self._thread is None:  # a daemon, so that a hung call does not keep the process from its exit
            self._thread = threading.Thread(target=self._run, name=f"gpufrag-{self._name}", daemon=True)
            self._thread.start()
        self._changed.notify_all()
        return now

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
        except Exception as error:  # the thread's outermost loop: no fault in here may end all later readings
            reason = f"a fault in gpufrag itself while it read {self._name} ({type(error).__name__}: {error})"
        ended = self._clock()
        return _Attempt(value, ended, CollectorResult(reason is None, ended - begun, reason))

    def _overdue(self) -> Answer[T]:
        """No times that pass are in the reason: it is a label too, and each wording of it a series of its own."""
        reason = f"{self._name} has not answered within {format_duration(self._deadline)}"
        last = self._last
        took = None if last is None else last.result.duration_seconds
        if last is None or last.value is None:
            return Answer(None, CollectorResult(False, took, reason))
        shown = self._clock() - last.ended <= self._keep
        keep = format_duration(self._keep)
        reason += f"; its last figures are {f'shown for {keep}' if shown else f'older than {keep} and no longer shown'}"
        return Answer(last.value if shown else None, CollectorResult(False, took, reason))
