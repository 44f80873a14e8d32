"""Two clocks, and what is measured by the one that does not jump."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from .record import DAY_S

HOUR_S = 3600.0
MAX_KEYS = 10_000


@dataclass(frozen=True)
class Clock:
    """`wall` returns Unix seconds; `steady` never goes back, and timeouts are measured by it."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic

    def now(self) -> float:
        """Return Unix time in whole seconds, as annotations store it."""
        return float(int(self.wall()))


@dataclass
class LocalHistory:
    """Restarts that this process began, by the steady clock: setting the host's clock must not permit more."""

    _begun: dict[str, list[float]] = field(default_factory=dict)

    def begin(self, uid: str, now_s: float) -> None:
        self._begun = {key: kept for key, times in self._begun.items() if (kept := _since(times, now_s - DAY_S))}
        self._begun.setdefault(uid, []).append(now_s)

    def age_s(self, uid: str, now_s: float) -> float | None:
        """Return the seconds since the last restart of a job; None: none within a day."""
        times = self._begun.get(uid)
        return now_s - times[-1] if times else None

    def within(self, seconds: float, now_s: float, uid: str | None = None) -> int:
        """Count the restarts begun within the last `seconds`, of one job or of all."""
        times = [self._begun.get(uid, [])] if uid is not None else list(self._begun.values())
        return sum(len(_since(one, now_s - seconds)) for one in times)


def _since(times: list[float], earliest_s: float) -> list[float]:
    return [at for at in times if at > earliest_s]


@dataclass
class Deduplicator:
    """Remembers keys for `lasts_s` seconds, and at most MAX_KEYS of them."""

    lasts_s: float
    _at: dict[Hashable, float] = field(default_factory=dict)

    def seen(self, key: Hashable, now_s: float) -> bool:
        """Return whether the key was seen within `lasts_s`; if not, remember it."""
        at = self._at.get(key)
        if at is not None and now_s - at < self.lasts_s:
            return True
        self._at.pop(key, None)
        self._at[key] = now_s
        while len(self._at) > MAX_KEYS:
            del self._at[next(iter(self._at))]
        return False
