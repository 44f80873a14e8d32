"""Blocking work for an event loop, in one thread.

Not the loop's own executor: on exit that waits for its threads, and a thread may hang in a driver or in a dead
network folder for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple["asyncio.Future[Any]", Callable[[], Any]]


class Worker:
    """Runs calls one at a time, in the order in which they were asked for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """The result of `call`, or its error. A caller that is cancelled while it waits takes its call with it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
            self._thread.start()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((done, call))
        return await done

    def _loop(self) -> None:
        while True:
            done, call = self._jobs.get()
            if not done.cancelled():
                _finish(done, call)
            del done, call  # else the last answer stays in memory until the next call


def _finish(done: asyncio.Future[T], call: Callable[[], T]) -> None:
    try:
        result = call()
    except Exception as error:  # not lost: it is raised where the caller waits
        _tell(done, done.set_exception, error)
    else:
        _tell(done, done.set_result, result)


def _tell(done: asyncio.Future[T], settle: Callable[[Any], None], value: Any) -> None:
    def settle_unless_gone() -> None:
        if not done.done():
            settle(value)

    with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile: nobody waits any more
        done.get_loop().call_soon_threadsafe(settle_unless_gone)
