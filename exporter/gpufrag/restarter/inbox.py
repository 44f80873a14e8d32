"""What waits to be looked at: alerts, in the order in which they came, and those that must wait a while."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from .alerts import Alert
from .reasons import Reason


@dataclass(frozen=True)
class Item:
    """An alert; times are by the steady clock."""

    alert: Alert
    came_s: float
    due_s: float
    told: Reason | None = None
    """Why it was refused so far, where that was said already."""


class Inbox:
    """Bounded. Any thread may put; one takes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: list[Item] = []
        self._woken = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Iterable[Item]) -> bool:
        """All of them or, where they do not fit, none."""
        new = list(items)
        with self._changed:
            if len(self._items) + len(new) > self._most:
                return False
            self._items += new
            self._wake()
            return True

    def put_back(self, item: Item) -> None:
        """One that was taken; it may go over the bound by itself."""
        with self._changed:
            self._items.append(item)

    def take(self, now_s: float) -> Item | None:
        """The first that is due."""
        with self._changed:
            place = next((place for place, item in enumerate(self._items) if item.due_s <= now_s), None)
            return None if place is None else self._items.pop(place)

    def next_due_s(self) -> float | None:
        with self._changed:
            return min((item.due_s for item in self._items), default=None)

    def wait(self, seconds: float) -> None:
        """Until something is put, or was since the last wait; or the time is over, or `wake`."""
        with self._changed:
            self._changed.wait_for(lambda: self._woken, seconds)
            self._woken = False

    def wake(self) -> None:
        with self._changed:
            self._wake()

    def _wake(self) -> None:
        self._woken = True
        self._changed.notify()
