"""Blocking work for an event loop, in one thread that an exit need not wait for.

The loop's own executor joins its threads on exit, and a thread may hang for ever in a driver or on a dead mount.
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


class SerialExecutor:
    """Runs calls one at a time, in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Return the result of `call` or raise its error. If the caller is cancelled first, `call` does not run."""
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
                try:
                    result = call()
                except Exception as error:
                    _finish(done, done.set_exception, error)
                else:
                    _finish(done, done.set_result, result)
                    del result
            del done, call  # else the last result stays in memory until the next call


def _finish(done: asyncio.Future[Any], settle: Callable[[Any], None], value: Any) -> None:
    def settle_unless_done() -> None:
        if not done.done():
            settle(value)

    with contextlib.suppress(RuntimeError):  # the loop has closed
        done.get_loop().call_soon_threadsafe(settle_unless_done)
