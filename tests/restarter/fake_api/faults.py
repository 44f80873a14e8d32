"""Planned faults: each request gets the first fault that matches it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fault:
    """A fault of one request. With `done`, the request is carried out and only its answer is affected."""

    status: int | None = None
    """The status of the answer; None: the connection is cut."""
    headers: dict[str, str] = field(default_factory=dict)
    done: bool = False
    body: bytes = b"upstream connect error"
    wait: threading.Event | None = None
    """The answer waits for this event, at most `wait_s`."""
    wait_s: float = 10.0


STORM = Fault(503)
CUT = Fault()
CUT_AFTER = Fault(done=True)
EXPIRED = Fault(401, body=b"")

Matches = Callable[[int, str, str], bool]


class Faults:
    """Requests are counted from 1."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: list[tuple[Matches, Fault]] = []
        self.requests = 0

    def at(self, number: int, fault: Fault) -> None:
        """Plan a fault of the request of this number, counted from the next one."""
        with self._lock:
            wanted = self.requests + number
            self._planned.append((lambda count, method, path: count == wanted, fault))

    def next(self, times: int, fault: Fault) -> None:
        """Plan a fault of each of the next requests."""
        for number in range(1, times + 1):
            self.at(number, fault)

    def on(self, method: str, part: str, fault: Fault) -> None:
        """Plan a fault of every request of this method whose path contains this part, until `clear`."""
        with self._lock:
            self._planned.append((lambda count, asked, path: asked == method and part in path, fault))

    def always(self, fault: Fault) -> None:
        """Plan a fault of every request until `clear`."""
        with self._lock:
            self._planned.append((lambda count, method, path: True, fault))

    def clear(self) -> None:
        with self._lock:
            self._planned.clear()

    def take(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests += 1
            return next((fault for matches, fault in self._planned if matches(self.requests, method, path)), None)
