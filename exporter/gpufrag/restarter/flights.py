"""Restarts under way in this process, each a generator that is resumed when the time it asked for is over."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from .alerts import Alert
from .cluster import Ref
from .finish import Result
from .owners import Resolved
from .reasons import Skip

Steps = Generator[float, None, "Result | Skip"]


@dataclass
class Flight:
    """One restart."""

    job: Resolved | None
    """None: it was begun by another."""
    ref: Ref
    alert: Alert
    steps: Steps
    due_s: float = 0.0


@dataclass
class Flights:
    """At most one a job. By the steady clock."""

    _by_uid: dict[str, Flight] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._by_uid)

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_uid

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(self._by_uid)

    def add(self, flight: Flight) -> None:
        self._by_uid[flight.ref.uid] = flight

    def drop(self, flight: Flight) -> None:
        del self._by_uid[flight.ref.uid]

    def due(self, now_s: float) -> list[Flight]:
        return [flight for flight in self._by_uid.values() if flight.due_s <= now_s]

    def next_due_s(self) -> float | None:
        return min((flight.due_s for flight in self._by_uid.values()), default=None)


def advance(flight: Flight, now_s: float) -> Result | Skip | None:
    """One step further; None: it goes on later."""
    try:
        flight.due_s = now_s + next(flight.steps)
    except StopIteration as end:
        result: Result | Skip = end.value
        return result
    return None
