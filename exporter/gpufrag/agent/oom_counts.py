"""How many out-of-memory errors there were, by device and cause, and how many more may be explained."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

from ..model.verdict import Cause
from ..wire.sample import Ooms

CAUSES = tuple(cause.value for cause in Cause)


class OomCounts:
    """May be used from any thread, and from within itself."""

    def __init__(self) -> None:
        self._causes: defaultdict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(CAUSES, 0))
        self._last: dict[int, tuple[float, int]] = {}
        self._lock = threading.RLock()  # a finaliser of the job may run in here, and ask for memory itself

    def add(self, device: int, cause: str, time: float, requested: int) -> None:
        with self._lock:
            self._causes[device][cause] += 1
            self._last[device] = time, requested

    def of(self, device: int) -> Ooms:
        with self._lock:
            time, requested = self._last.get(device, (None, None))
            return Ooms(dict(self._causes[device]), time, requested)


class Allowance:
    """Reports in a row, and one more each `every` seconds: a search for a batch size may fail thousands of times."""

    def __init__(self, clock: Callable[[], float], burst: int = 8, every: float = 5.0) -> None:
        self._clock, self._burst, self._every = clock, burst, every
        self._left, self._since = float(burst), clock()

    def take(self) -> bool:
        """Whether there is one left; then it is used."""
        now = self._clock()
        self._left = min(self._burst, self._left + max(0.0, now - self._since) / self._every)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
