"""The pools behind a trace whose events have no pool numbers (torch before 2.12).

The last heap has the pools of the segments that still exist. For the others the addresses are evidence:

- A request takes the best free block of its pool. A segment that had a better one belongs to another pool.
- A flush releases the free memory of the default pool and of private pools that have ended. What it leaves belongs to
  a private pool, and a private pool serves no request after a flush has released memory of it.
- An expandable segment is large enough for all memory of a pool, so a second one belongs to another pool.

The segments are divided into as few pools as the evidence allows. A replay then reproduces the recorded addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from ..allocatable import Driver
from ..heap import DEFAULT_POOL, MOST, Heap
from ..settings import SMALL_SEGMENT, Settings
from .events import ALLOC, FREE_COMPLETED, FREE_REQUESTED, GROWS, OOM, SHRINKS, Event, has_completions
from .history import Beginning, allocations
from .holdings import Holding, Memory

UNKNOWN_POOL = (MOST, MOST)
"""The pool of a failed request, which has no address."""


Place = tuple[int, int]
"""A plain segment: its address, and the event that made it (-1: older than the trace)."""


class SegmentPool(NamedTuple):
    pool: tuple[int, int]
    is_inferred: bool


class Pooled(NamedTuple):
    """The beginning of a trace with the pool of each segment, block and event.

    unclear: segments of which the trace does not show whether they belong to the default pool. segments: the pools of
    the plain segments.
    """

    beginning: Beginning
    unclear: int
    segments: Mapping[Place, SegmentPool]


def infer_pools(
    beginning: Beginning, end: Heap, driver: Driver, tried: Mapping[Place, tuple[int, int]] = MappingProxyType({})
) -> Pooled:
    """Return a trace with inferred pools; failed requests have UNKNOWN_POOL.

    driver: the device's size and the process's limit, as far as they are known. tried: pools of plain
    segments, used instead of what the trace shows.
    """
    failed_in = UNKNOWN_POOL if end.settings.torch < (2, 12) else DEFAULT_POOL
    if not _may_have_private_pools(beginning.events, end):
        events = [_in_pool(event, failed_in) if event.action == OOM else event for event in beginning.events]
        return Pooled(replace(beginning, events=events), 0, {})
    older_pools, pools = _lasting(beginning, end)
    memory = Memory(beginning.heap, driver, older_pools)
    older = [memory.owner(segment.address) for segment in beginning.heap.segments]
    evidence = _Evidence(memory)
    owners = evidence.collect(beginning.events, pools)
    for segment in end.segments:  # expandable ones are only known now
        if (holding := memory.owner(segment.address)) is not None:
            holding.pool = segment.pool
    if end.settings.expandable_segments and end.settings.torch < (2, 5):
        for holding in memory.holdings:
            holding.is_private |= not holding.expandable
    evidence.weigh_vain_releases()
    plain = {(holding.address, since): holding for holding, since in evidence.since.items() if not holding.expandable}
    inferred = {place for place, holding in plain.items() if holding.pool is None}
    for place in inferred & tried.keys():
        plain[place].pool = tried[place]
    unclear = _divide(memory.holdings)
    segments = tuple(
        segment._replace(pool=owner.pool) if owner is not None and owner.pool is not None else segment
        for segment, owner in zip(beginning.heap.segments, older)
    )
    events = [
        _in_pool(event, failed_in if event.action == OOM else owner.pool if owner is not None else None)
        for event, owner in zip(beginning.events, owners)
    ]
    heap = replace(beginning.heap, segments=segments)
    found = {place: SegmentPool(holding.pool or DEFAULT_POOL, place in inferred) for place, holding in plain.items()}
    return Pooled(Beginning(tuple(allocations(segments)), heap, events), unclear, found)


def _may_have_private_pools(events: Sequence[Event], end: Heap) -> bool:
    """Return whether there may be other pools than the default one."""
    return any(segment.private for segment in end.segments) or any(event.action in SHRINKS for event in events)


def _lasting(beginning: Beginning, end: Heap) -> tuple[dict[int, tuple[int, int]], dict[int, tuple[int, int]]]:
    """Return the pools of the plain segments that exist at the end: of older ones by address, of others by event."""
    since = {segment.address: -1 for segment in beginning.heap.segments}
    for index, event in enumerate(beginning.events):
        if event.action == "segment_alloc" and event.address is not None:
            since[event.address] = index
        elif event.action == "segment_free" and event.address is not None:
            since.pop(event.address, None)
    lasting = [segment for segment in end.segments if not segment.expandable and segment.address in since]
    older = {segment.address: segment.pool for segment in lasting if since[segment.address] < 0}
    return older, {since[segment.address]: segment.pool for segment in lasting if segment.address not in older}


def _in_pool(event: Event, pool: tuple[int, int] | None) -> Event:
    return event if pool is None or pool == event.pool else event._replace(pool=pool)


class _Evidence:
    """Collects what the events of a trace show of the pools of their segments."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.since = dict.fromkeys(memory.holdings, -1)
        """The event that made each holding; -1 for an older one."""
        self._vain: list[tuple[list[Holding], list[Holding]]] = []
        """What a failed request released, perhaps without a flush, and what else was releasable."""

    def collect(self, events: Sequence[Event], pools: Mapping[int, tuple[int, int]]) -> list[Holding | None]:
        """Return the holding of each event, None for one without an address.

        pools: of new segments, by index of the event, as far as they are known.
        """
        memory, completes = self._memory, has_completions(events)
        owners: list[Holding | None] = []
        gone: list[tuple[Holding, Event]] = []
        has_released = False  # since the last call
        for index, event in enumerate(events):
            action, address = event.action, event.address
            owner = None if address is None or action == OOM else memory.owner(address)
            if gone and action not in SHRINKS and action != FREE_COMPLETED:
                self._note_release(gone, index, failed=action == OOM)
                gone = []
            if action in GROWS:
                owner = memory.grow(event, pools.get(index))
                self.since.setdefault(owner, index)
            elif action in SHRINKS:
                has_released = True
                if owner is not None:
                    memory.shrink(owner, event)
                    if owner not in memory.new:  # else pages mapped in vain
                        gone.append((owner, event))
            elif action == FREE_COMPLETED and address is not None:
                before = events[index - 1] if index else None
                if before is None or before.address != address or before.action != FREE_REQUESTED:
                    memory.late.add(address)
                memory.put(address)
            elif action in (ALLOC, FREE_REQUESTED, OOM):
                if not has_released:
                    memory.late.clear()
                    if action == OOM or memory.new:
                        self._note_no_collection()
                if action == ALLOC and address is not None and owner is not None:
                    memory.put(address)  # if its completion was left out
                    memory.take(owner, index, event)
                elif action == FREE_REQUESTED and address is not None and not completes:
                    memory.put(address)
                memory.end_call()
                has_released = False
            owners.append(owner)
        if gone:
            self._note_release(gone, len(events), failed=False)
        return owners

    def weigh_vain_releases(self) -> None:
        """Segments that a failed request released without a flush, as other free memory shows, were of its own pool."""
        for released, kept in self._vain:
            if any(holding.pool == DEFAULT_POOL for holding in kept):
                for holding in released:
                    holding.is_private = True

    def _note_release(self, gone: Iterable[tuple[Holding, Event]], index: int, failed: bool) -> None:
        memory = self._memory
        if all(_may_be_partial(memory.settings, event) for _, event in gone):
            if failed:
                self._vain.append(([holding for holding, _ in gone], list(memory.releasable())))
            return
        for holding, _ in gone:
            holding.released = min(holding.released, index)
        for holding in memory.releasable():
            holding.survived = index
            holding.is_private = True

    def _note_no_collection(self) -> None:
        """Garbage collection would have released at least the oldest free segment of the default pool."""
        if self._memory.collects():
            for holding in self._memory.releasable():
                holding.is_private |= not (holding.small or holding.expandable)


def _may_be_partial(settings: Settings, event: Event) -> bool:
    """Return whether something less than a flush of all pools may have released the memory.

    That is the end of a MemPool (torch >= 2.8), garbage collection, or the search for a block above max_split_size.
    """
    if settings.torch >= (2, 8):
        return True
    if event.action == "segment_unmap" or event.size == SMALL_SEGMENT:
        return False
    least = settings.max_split_size
    return settings.garbage_collection_threshold > 0 or (least is not None and event.size >= least)


class _Members:
    """The holdings of one pool, with the sums that show in one step whether another one is of a different pool."""

    def __init__(self) -> None:
        self.holdings: set[Holding] = set()
        self.latest = 0
        """The highest number of a holding."""
        self._released, self._survived, self._used = MOST, -1, -1

    def add(self, holding: Holding) -> None:
        self.holdings.add(holding)
        self.latest = max(self.latest, holding.number)
        self._released = min(self._released, holding.released)
        self._survived, self._used = max(self._survived, holding.survived), max(self._used, holding.used)

    def differ(self, holding: Holding) -> bool:
        """Return whether one belongs to another pool: a flush of all releases what is free in the same pool."""
        return (
            holding.released <= self._survived
            or self._released <= holding.survived
            or not holding.others.isdisjoint(self.holdings)
        )

    def share_private_pool(self, holding: Holding) -> bool:
        """Return whether one private pool can have all: it serves no request once a flush has released memory."""
        return not (self._released <= holding.used or holding.released <= self._used or self.differ(holding))


def _divide(holdings: Sequence[Holding]) -> int:
    """Assign the holdings of unknown pools, as many as possible to the default pool; return how many are unclear."""
    default = _Members()
    unknown = [holding for holding in holdings if holding.pool is None]

    def assign_default(holding: Holding) -> None:
        holding.pool = DEFAULT_POOL
        default.add(holding)

    for holding in holdings:
        if holding.pool == DEFAULT_POOL:
            default.add(holding)
    for holding in unknown:
        if holding.is_default and not holding.is_private:
            assign_default(holding)
    unknown = [holding for holding in unknown if holding.pool is None]
    for holding in unknown:
        holding.is_private |= default.differ(holding)
    either = {holding for holding in unknown if not holding.is_private}
    rivals = {holding: len(holding.others & either) for holding in unknown if holding in either}
    for holding in sorted(rivals, key=lambda holding: (rivals[holding], -holding.requests)):
        if not default.differ(holding):
            assign_default(holding)
    _divide_private(holdings)
    return sum(count > 0 for count in rivals.values())


def _divide_private(holdings: Sequence[Holding]) -> None:
    """Assign the holdings without a pool to private ones, to the one used last if possible."""
    pools: dict[tuple[int, int], _Members] = {}
    for holding in holdings:
        if holding.pool not in (None, DEFAULT_POOL):
            pools.setdefault(holding.pool, _Members()).add(holding)
    invented = 0
    for holding in holdings:
        if holding.pool is None:
            fitting = [pool for pool, members in pools.items() if members.share_private_pool(holding)]
            if not fitting:
                invented += 1
                fitting = [(0, MOST - invented)]
            holding.pool = max(fitting, key=lambda pool: pools[pool].latest if pool in pools else 0)
            pools.setdefault(holding.pool, _Members()).add(holding)
