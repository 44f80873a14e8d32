"""The segments of a trace and their free blocks, event by event, whatever pools they belong to."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..allocatable import Driver
from ..heap import INACTIVE, MOST, Heap, Segment
from ..settings import MIN_BLOCK, SMALL_REQUEST, SMALL_SEGMENT, TieBreak
from .events import Event

MOST_PAIRS = 1_000_000
"""Comparisons that prove two holdings to be in different pools. A hostile trace has as many as its square; they take
100 bytes each."""
MOST_SURVIVALS = 2_000_000
"""Times that releasable holdings are listed, for the same reason: each flush lists those that survived it."""


@dataclass(eq=False)
class Holding:
    """A plain segment, or the address space of an expandable one from its first mapped page to its last.

    `used`, `survived` and `released` are indices of events.
    """

    number: int
    address: int
    end: int
    stream: int
    small: bool
    expandable: bool
    pool: tuple[int, int] | None = None
    """None if unknown."""
    is_private: bool = False
    """Whether it is proven not to be the default pool's."""
    is_default: bool = False
    """Whether it is proven not to be a private pool's."""
    mapped: int = 0
    requests: int = 0
    used: int = -1
    """The last request that it served; -1 is none."""
    survived: int = -1
    """The last flush that left it although it had free memory; -1 is none."""
    released: int = MOST
    """The first flush that released memory of it; MOST is none."""
    others: set[Holding] = field(default_factory=set)
    """Those in other pools, as far as requests prove it."""
    holes: set[int] = field(default_factory=set)
    """The addresses of its free blocks."""
    pages: set[int] = field(default_factory=set)
    """Those with a whole page, if it is expandable."""


class Memory:
    """All holdings of one device and their free blocks, while the events of a trace happen.

    pools: of the older segments, by address, as far as they are known. Two holdings of known pools are not compared.
    """

    def __init__(self, beginning: Heap, driver: Driver, pools: Mapping[int, tuple[int, int]]) -> None:
        settings = self.settings = beginning.settings
        threshold = settings.garbage_collection_threshold
        self._collects_above = int(threshold * driver.limit) if threshold and driver.limit is not None else None
        self._span = None if driver.size is None else driver.size + driver.size // 8
        self._takes_lowest = settings.tie_break is TieBreak.LOWEST_ADDRESS
        self._reserved = 0
        self.holdings: list[Holding] = []
        self.new: list[Holding] = []
        """Those made for the current request."""
        self.late: set[int] = set()
        """Addresses of blocks that may have become free only after the current request looked for one."""
        self._live: dict[int, Holding] = {}
        self._starts: list[int] = []
        self._holes: dict[int, int] = {}  # size by address
        self._hole_ends: dict[int, int] = {}  # address by end
        self._free: dict[tuple[int, bool], dict[tuple[int, int] | None, list[tuple[int, int]]]] = {}
        """(size, address) of the free blocks in plain ones, sorted; by stream and kind, then by pool."""
        self._pairs_left, self._survivals_left = MOST_PAIRS, MOST_SURVIVALS
        self._releasable: dict[Holding, None] = {}
        """Plain holdings that are one free block, and expandable ones with a free page."""
        self._expandable: dict[tuple[int, bool], dict[Holding, None]] = {}
        """By stream and kind."""
        self._sizes: dict[int, int] = {}  # of the blocks that are not free
        for segment in beginning.segments:
            self._adopt(segment, pools.get(segment.address))
        self.end_call()

    def owner(self, address: int) -> Holding | None:
        index = bisect_right(self._starts, address)
        holding = self._live[self._starts[index - 1]] if index else None
        return holding if holding is not None and address < holding.end else None

    def grow(self, event: Event, pool: tuple[int, int] | None) -> Holding:
        """Add a segment or pages; return the holding with them. `pool`: None if unknown."""
        address, size = event.address or 0, event.size
        holding = self._holding(address, size, event.stream, size == SMALL_SEGMENT, event.action == "segment_map")
        holding.pool = holding.pool or pool
        self._add_hole(holding, address, size)
        return holding

    def shrink(self, holding: Holding, event: Event) -> None:
        """Remove a free segment or free pages of the holding."""
        start = event.address or 0
        end = start + event.size
        for address in [
            address for address in holding.holes if address < end and start < address + self._holes[address]
        ]:
            size = self._holes[address]
            self._drop_hole(holding, address)
            if address < start:
                self._add_hole(holding, address, start - address)
            if address + size > end:
                self._add_hole(holding, end, address + size - end)
        holding.mapped -= event.size
        self._reserved -= event.size
        if holding.mapped <= 0:
            self._forget(holding)
            del self._live[holding.address]
            del self._starts[bisect_left(self._starts, holding.address)]

    def take(self, holding: Holding, index: int, event: Event) -> None:
        """A block of the holding serves a request."""
        address, size = event.address or 0, self.settings.round(event.size)
        hole = self._holes.get(address)
        if hole is not None:
            if not holding.expandable:
                self._compare(holding, size, (hole, address if self._takes_lowest else 0))
            self._drop_hole(holding, address)
            size = self._block_size(holding, size, hole)
            if size < hole:
                self._add_hole(holding, address + size, hole - size)
        self._sizes[address] = size
        holding.requests += 1
        holding.used = index
        holding.is_default |= holding.released < index

    def put(self, address: int) -> None:
        """A block becomes free; ignores one that is free already."""
        holding, size = self.owner(address), self._sizes.pop(address, None)
        if holding is not None and size is not None:
            self._add_hole(holding, address, size)

    def end_call(self) -> None:
        self.late.clear()
        self.new.clear()

    def collects(self) -> bool:
        """Return whether a request that the cache does not serve makes torch collect garbage."""
        before = self._reserved - sum(holding.mapped for holding in self.new)
        return self._collects_above is not None and before > self._collects_above

    def releasable(self) -> Iterator[Holding]:
        """Yield the holdings with memory that a flush of their pool releases."""
        for holding in self._releasable:
            if self._survivals_left > 0 and holding not in self.new:
                self._survivals_left -= 1
                yield holding

    def _note_released(self, holding: Holding, start: int, size: int) -> None:
        """Note a new free block if a flush releases memory of it."""
        if holding.expandable:
            page, offset = self.settings.page_size(holding.small), start - holding.address
            if -(-offset // page) * page + page <= offset + size:
                holding.pages.add(start)
                self._releasable[holding] = None
        elif size == holding.end - holding.address:
            self._releasable[holding] = None

    def _forget(self, holding: Holding) -> None:
        self._releasable.pop(holding, None)
        self._expandable.get((holding.stream, holding.small), {}).pop(holding, None)

    def _adopt(self, segment: Segment, pool: tuple[int, int] | None) -> None:
        holding = self._holding(segment.address, segment.size, segment.stream, segment.small, segment.expandable)
        holding.pool = holding.pool or pool
        for block in segment.blocks():
            if block.state is INACTIVE:
                self._add_hole(holding, block.address, block.size)
            else:
                self._sizes[block.address] = block.size

    def _holding(self, address: int, size: int, stream: int, small: bool, expandable: bool) -> Holding:
        """Return the holding for new memory: a new one, or the expandable segment with that address space."""
        holding = self._region(address, size, stream, small) if expandable else None
        if holding is None:
            holding = Holding(len(self.holdings), address, address, stream, small, expandable)
            if expandable and self._pairs_left > 0:
                for other in self._expandable.get((stream, small), ()):
                    if self._span is None or other.end + size <= other.address + self._span:
                        self._part(holding, other)  # it had room
            if (replaced := self._live.get(address)) is not None:
                self._forget(replaced)
            if expandable:
                self._expandable.setdefault((stream, small), {})[holding] = None
            self.holdings.append(holding)
            self.new.append(holding)
            self._live[address] = holding
            insort(self._starts, address)
        elif address < holding.address:
            self._starts[bisect_left(self._starts, holding.address)] = address
            self._live[address] = self._live.pop(holding.address)
            moves = holding.address - address
            holding.address = address
            if moves % self.settings.page_size(small):  # other pages
                holding.pages.clear()
                self._releasable.pop(holding, None)
                for hole in holding.holes:
                    self._note_released(holding, hole, self._holes[hole])
        holding.end = max(holding.end, address + size)
        holding.mapped += size
        self._reserved += size
        return holding

    def _region(self, address: int, size: int, stream: int, small: bool) -> Holding | None:
        """Return the expandable segment whose address space contains the address or borders on it."""
        index = bisect_right(self._starts, address)
        for start in self._starts[max(0, index - 1) : index + 1]:
            holding = self._live[start]
            if holding.expandable and (holding.stream, holding.small) == (stream, small):
                borders = start <= address <= holding.end or address + size == start
                if borders or (self._span is not None and 0 <= address - start < self._span):
                    return holding
        return None

    def _block_size(self, holding: Holding, size: int, hole: int) -> int:
        """Return the size of the block that serves `size` bytes from a free block of `hole` bytes."""
        settings = self.settings
        fine = holding.small or holding.expandable or (settings.expandable_segments and settings.torch < (2, 10))
        largest = None if holding.small or holding.expandable else settings.max_split_size
        splits = hole - size > (MIN_BLOCK - 1 if fine else SMALL_REQUEST) and (largest is None or size < largest)
        return size if splits else hole

    def _compare(self, holding: Holding, size: int, taken: tuple[int, int]) -> None:
        """Note the holdings with a better free block than the taken one: they are in other pools.

        A new segment is worse than any free block.
        """
        least = None if holding.small else self.settings.max_split_size
        is_new = holding in self.new
        for pool, free in self._free[holding.stream, holding.small].items():
            if (pool is not None and holding.pool is not None) or self._pairs_left <= 0:
                continue
            for at in range(bisect_left(free, (size, 0)), len(free)):
                found, address = free[at]
                if not is_new and free[at] >= taken:
                    break
                if least is not None:
                    rounding = self.settings.max_non_split_rounding
                    if size < least <= found or (size >= least and found >= size + rounding):
                        break
                other = self.owner(address)
                if other is not None and other is not holding and address not in self.late:
                    self._part(holding, other)

    def _add_hole(self, holding: Holding, address: int, size: int) -> None:
        """Add a free block, merged with its free neighbours.

        Blocks may overlap: the sizes of blocks that are older than the trace are inferred.
        """
        start, end = address, address + size
        if start in holding.holes:
            self._drop_hole(holding, start)
        late = address in self.late
        before = self._hole_ends.get(start)
        if before is not None and before in holding.holes:
            late |= before in self.late
            self._drop_hole(holding, before)
            start = before
        if end in holding.holes:
            late |= end in self.late
            end += self._drop_hole(holding, end)
        self._holes[start] = end - start
        self._hole_ends[end] = start
        holding.holes.add(start)
        self._note_released(holding, start, end - start)
        if late:
            self.late.add(start)
        if not holding.expandable:
            by_pool = self._free.setdefault((holding.stream, holding.small), {})
            insort(by_pool.setdefault(holding.pool, []), (end - start, start))

    def _drop_hole(self, holding: Holding, address: int) -> int:
        """Remove a free block; return its size."""
        size = self._holes.pop(address)
        self._hole_ends.pop(address + size, None)
        holding.holes.discard(address)
        holding.pages.discard(address)
        if not holding.pages:
            self._releasable.pop(holding, None)
        if not holding.expandable:
            free = self._free[holding.stream, holding.small][holding.pool]
            del free[bisect_left(free, (size, address))]
        return size

    def _part(self, one: Holding, other: Holding) -> None:
        self._pairs_left -= 1
        one.others.add(other)
        other.others.add(one)
