"""Mends the inferred pools of a trace: if its replay differs, some of them are wrong, and the difference shows which.

At the first difference, one of a flush, a private segment that the replay took for the default pool's is released only
in the replay, or the reverse. A changed pool is kept if the replay then follows the recording further.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..allocatable import Driver
from ..heap import DEFAULT_POOL, MOST, Heap
from .events import GROWS, SHRINKS, Event
from .pools import Place
from .whatif import Run, begin, read_run

MOST_TRIES, MOST_EVENTS = 100, 4_000_000
"""Readings of a trace, and the events that all of them read."""


_Pools = dict[Place, tuple[int, int]]


def read_repaired(events: Sequence[Event], end: Heap, driver: Driver, limit: int | None = None) -> Run:
    """Return the run behind a trace, as read_run does; its inferred pools explain as much of it as possible."""
    best = read_run(events, end, driver, limit)
    if all(segment.pool == DEFAULT_POOL for segment in best.pools.values()):
        return best
    kept: _Pools = {}
    difference, tries = _first_difference(events, best), 0
    most = min(MOST_TRIES, MOST_EVENTS // (len(events) + 1))
    while difference is not None and tries < most:
        for change in _changes(events, best, difference, (0, MOST - MOST_EVENTS - tries)):
            tries += 1
            run = read_run(events, end, driver, limit, kept | change)
            found = _first_difference(events, run)
            if found is None or found.at > difference.at:
                best, kept, difference = run, kept | change, found
                break
        else:
            break
    return best


class _Difference(NamedTuple):
    """The first event that differs, and the segments that only the replay, or only the recording, released there."""

    at: int
    replayed: list[int]
    recorded: list[int]
    released: set[int]
    """All that the recording released there."""


def _changes(events: Sequence[Event], run: Run, difference: _Difference, new: tuple[int, int]) -> Iterator[_Pools]:
    """Yield the changes of pools that may explain a difference; `new` is the number of a pool that does not exist."""
    at = difference.at
    known = {address: (address, since) for address, since in sorted(run.pools, key=_since) if since < at}
    alone = [known[address] for address in difference.replayed if address in known]
    owners = {run.pools[place].pool for place in alone}
    inferred = {place for place, segment in run.pools.items() if segment.is_inferred}
    released = [place for place in alone if place in inferred]
    kept = [known[address] for address in difference.recorded if address in known and known[address] in inferred]
    gone = {event.address for event in events[: at + 1] if event.action == "segment_free"}
    gone |= difference.released
    ended = [place for place in inferred if run.pools[place].pool in owners - {DEFAULT_POOL} and place[0] in gone]
    for places, pool in ((released, new), (kept, DEFAULT_POOL), (ended, DEFAULT_POOL), (ended, new)):
        places = [place for place in places if run.pools[place].pool != pool]
        if places:
            yield dict.fromkeys(places, pool)
        if len(places) > 1:
            yield from ({place: pool} for place in places)


def _since(place: Place) -> int:
    return place[1]


def _first_difference(events: Sequence[Event], run: Run) -> _Difference | None:
    seen: list[Event] = []
    begin(run, run.end.settings, run.recorded_limit, observe=seen.append).run()
    groups = list(_groups(seen))
    last = 0
    for number, (index, released, grown) in enumerate(_groups(events)):
        ours = groups[number] if number < len(groups) else (0, {}, None)
        if ours[1] != released or ours[2] != grown:
            return _Difference(
                index, [*ours[1].keys() - released.keys()], [*released.keys() - ours[1].keys()], {*released}
            )
        last = index
    if len(groups) > number + 1:
        return _Difference(last + 1, [*groups[number + 1][1]], [], set())
    return None


_Group = tuple[int, dict[int, int], tuple[int, int] | None]


def _groups(events: Sequence[Event]) -> Iterator[_Group]:
    """Yield the released segments (size by address) before each new one, which is None at the end, and their index."""
    released: dict[int, int] = {}
    first = None
    for index, event in enumerate(events):
        if event.action in SHRINKS:
            released[event.address or 0] = event.size
            first = index if first is None else first
        elif event.action in GROWS:
            yield index if first is None else first, released, (event.address or 0, event.size)
            released, first = {}, None
    yield len(events) if first is None else first, released, None
