"""Which of the latest snapshots still tell something about now."""

from __future__ import annotations

from collections.abc import Iterable

from ..wire.sample import Snapshot

BESIDE = 6
"""Windows. Boundary and peak take turns: two that should have come have not."""
ALONE = 15
"""Windows without any snapshot, though each should have one: what the last one says may not hold any more."""
WINDOW = 10.0
"""Seconds that a window counts, at the least."""


def current(snapshots: Iterable[Snapshot], now: float, window: float) -> tuple[Snapshot, ...]:
    """By moment. One that is old is left out: long before that if there are newer ones, of other moments.

    The worst moment of a job is what is judged, so that one that no longer comes would be judged for ever.
    """
    found = sorted(snapshots, key=lambda snapshot: snapshot.at)
    latest = max((min(now, snapshot.time) for snapshot in found), default=now)  # the clock may have been set back
    counted = max(window, WINDOW)
    return tuple(
        snapshot
        for snapshot in found
        if latest - snapshot.time <= BESIDE * counted and now - snapshot.time <= ALONE * counted
    )
