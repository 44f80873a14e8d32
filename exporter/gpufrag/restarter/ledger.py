"""What this process knows of its own by a clock that cannot jump: a host's clock that is set must restart nothing."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from .record import DAY_S

_MOST = 10_000


@dataclass
class Ledger:
    """Restarts that were begun here; all times by the steady clock."""

    _begun: dict[str, list[float]] = field(default_factory=dict)

    def begin(self, uid: str, now_s: float) -> None:
        self._begun = {key: kept for key, times in self._begun.items() if (kept := _since(times, now_s - DAY_S))}
        self._begun.setdefault(uid, []).append(now_s)

    def age_s(self, uid: str, now_s: float) -> float | None:
        """Since the last restart of this job; None: none was begun here within a day."""
        times = self._begun.get(uid)
        return now_s - times[-1] if times else None

    def within(self, seconds: float, now_s: float, uid: str | None = None) -> int:
        """How many were begun within the last `seconds`, of one job or of all."""
        times = [self._begun.get(uid, [])] if uid is not None else list(self._begun.values())
        return sum(len(_since(one, now_s - seconds)) for one in times)


@dataclass
class Said:
    """What was told a short while ago, and need not be told again. Bounded: the oldest are forgotten."""

    lasts_s: float
    _at: dict[Hashable, float] = field(default_factory=dict)

    def again(self, key: Hashable, now_s: float) -> bool:
        """Whether it was told within `lasts_s`; if not, it now is."""
        at = self._at.get(key)
        if at is not None and now_s - at < self.lasts_s:
            return True
        self._at.pop(key, None)
        self._at[key] = now_s
        while len(self._at) > _MOST:
            del self._at[next(iter(self._at))]
        return False


def _since(times: list[float], earliest_s: float) -> list[float]:
    return [at for at in times if at > earliest_s]
