"""What can go wrong on the way, said beforehand: each request takes the first fault that is meant for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fault:
    """Done to one request. With `done`, the request is carried out all the same, and only its answer suffers."""

    status: int | None = None
    """Answered instead; None: the connection is cut without a word."""
    headers: dict[str, str] = field(default_factory=dict)
    done: bool = False
    body: bytes = b"upstream connect error"
    wait: threading.Event | None = None
    """The answer waits for this, at most `wait_s`."""
    wait_s: float = 10.0


STORM = Fault(503)
CUT = Fault()
CUT_AFTER = Fault(done=True)
EXPIRED = Fault(401, body=b"")

Matches = Callable[[int, str, str], bool]


class Faults:
    """The faults that are still to come. Requests are counted from 1."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: list[tuple[Matches, Fault]] = []
        self.requests = 0

    def at(self, number: int, fault: Fault) -> None:
        """To the request of this number, counted from the next one on."""
        with self._lock:
            wanted = self.requests + number
            self._planned.append((lambda count, method, path: count == wanted, fault))

    def next(self, times: int, fault: Fault) -> None:
        """To each of the next so many requests."""
        for number in range(1, times + 1):
            self.at(number, fault)

    def on(self, method: str, part: str, fault: Fault) -> None:
        """To every request of this method whose path has this part, until `clear`."""
        with self._lock:
            self._planned.append((lambda count, asked, path: asked == method and part in path, fault))

    def always(self, fault: Fault) -> None:
        """To every request, until `clear`: an API server that is away."""
        with self._lock:
            self._planned.append((lambda count, method, path: True, fault))

    def clear(self) -> None:
        with self._lock:
            self._planned.clear()

    def take(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests += 1
            return next((fault for matches, fault in self._planned if matches(self.requests, method, path)), None)
