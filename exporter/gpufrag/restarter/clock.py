"""Two clocks: one that people read, and may be set; one that only goes forward, by which time-outs are measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, repeat

MAX_DELAY_S = 60.0


@dataclass(frozen=True)
class Clock:
    """`wall` gives Unix seconds, `steady` seconds since any moment."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic

    def now(self) -> float:
        """Unix time in whole seconds, as annotations keep it."""
        return float(int(self.wall()))


def delays(first_s: float) -> Iterator[float]:
    """Seconds to wait after each failure in a row: doubled, up to a minute. Without an end."""
    return accumulate(repeat(first_s), lambda delay, _: min(delay * 2, max(MAX_DELAY_S, first_s)))
