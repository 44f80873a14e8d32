"""Restarts under way in this process, each a generator that is resumed when the time it asked for is over."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from .alerts import FIRING, Alert
from .finish import Result
from .inbox import Item
from .kubernetes.cluster import Ref
from .kubernetes.owners import Resolved
from .reasons import Skip

NO_ALERT = Alert(FIRING)
"""Of restarts that others have begun."""
Steps = Generator[float, None, "Result | Skip"]


@dataclass
class Flight:
    """One restart."""

    item: Item | None
    job: Resolved | None
    """None, both of them: it was begun by another."""
    ref: Ref
    steps: Steps
    due_s: float = 0.0

    @property
    def alert(self) -> Alert:
        return self.item.alert if self.item else NO_ALERT


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

    def abandon(self) -> None:
        """End them here: each gives back what it can at once, and the next receiver goes on with the rest."""
        for flight in list(self._by_uid.values()):
            self.drop(flight)
            flight.steps.close()

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
