"""The simulated allocator's blocks, chained in address order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import count
from typing import NamedTuple

from ..heap import ALLOCATED, INACTIVE, Segment
from ..settings import MIN_BLOCK, SMALL_REQUEST, Settings, TieBreak

ADDRESS_BITS = 64
ORDER_BITS = 96
CHUNK = 1024
UNMAPPED = "unmapped"  # address space of an expandable segment without memory behind it
UNBOUNDED = 1 << 62


class FreeList:
    """Blocks sorted by size, then by address.

    The sort key is one integer in chunks of bounded length, so an insertion moves at most one chunk. `_bounds[i]` is
    the largest key allowed in chunk i; the last chunk has no bound.
    """

    __slots__ = ("_blocks", "_bounds", "_chunks")

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self._chunks: list[list[int]] = [[]]
        self._bounds: list[int] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return self.at_least(0)

    def add(self, block: Block) -> None:
        key = block.size << ORDER_BITS | block.order
        self._blocks[key] = block
        at = bisect_left(self._bounds, key) if self._bounds else 0
        chunk = self._chunks[at]
        insort(chunk, key)
        if len(chunk) > CHUNK:
            self._halve(at)

    def remove(self, block: Block) -> None:
        """Remove the block. Raises KeyError if it is not in the list."""
        key = block.size << ORDER_BITS | block.order
        del self._blocks[key]
        at = bisect_left(self._bounds, key) if self._bounds else 0
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, key)]
        if not chunk:
            self._drop(at)

    def take(self, size: int) -> Block | None:
        """Remove and return the first block of at least `size` bytes."""
        key = size << ORDER_BITS
        at = bisect_left(self._bounds, key) if self._bounds else 0
        chunk = self._chunks[at]
        index = bisect_left(chunk, key)
        if index == len(chunk):
            at, index = at + 1, 0
            if at == len(self._chunks):
                return None
            chunk = self._chunks[at]
        block = self._blocks.pop(chunk.pop(index))
        if not chunk:
            self._drop(at)
        return block

    def first(self, size: int) -> Block | None:
        """Return the first block of at least `size` bytes without removing it."""
        key = size << ORDER_BITS
        at = bisect_left(self._bounds, key)
        chunk = self._chunks[at]
        index = bisect_left(chunk, key)
        if index < len(chunk):
            return self._blocks[chunk[index]]
        return self._blocks[self._chunks[at + 1][0]] if at + 1 < len(self._chunks) else None

    def at_least(self, size: int) -> Iterator[Block]:
        """Yield the blocks of at least `size` bytes in order. The list must not change meanwhile."""
        key = size << ORDER_BITS
        at = bisect_left(self._bounds, key)
        index = bisect_left(self._chunks[at], key)
        for chunk in self._chunks[at:]:
            for found in chunk[index:] if index else chunk:
                yield self._blocks[found]
            index = 0

    def _halve(self, at: int) -> None:
        chunk = self._chunks[at]
        middle = len(chunk) // 2
        self._chunks.insert(at + 1, chunk[middle:])
        del chunk[middle:]
        self._bounds.insert(at, chunk[-1])

    def _drop(self, at: int) -> None:
        """Remove an empty chunk unless it is the only one."""
        if self._bounds:
            del self._chunks[at]
            del self._bounds[min(at, len(self._bounds) - 1)]


class Block:
    """A run of bytes with one state: ALLOCATED, AWAITING or INACTIVE (see heap), or UNMAPPED.

    `born` is the pool's age when the block last entered its free list. `shared`: another stream uses the block, so a
    free must wait for that stream.
    """

    __slots__ = ("address", "arena", "born", "next", "order", "prev", "region", "requested", "shared", "size", "state")

    def __init__(self, address: int, size: int, order: int, arena: Arena, region: Region | None = None) -> None:
        self.address = address
        self.order = order
        self.size = size
        self.arena = arena
        self.region = region
        self.requested = 0
        self.state = INACTIVE
        self.shared = False
        self.born = 0
        self.prev: Block | None = None
        self.next: Block | None = None

    @property
    def whole(self) -> bool:
        """Whether the block fills its whole segment."""
        return self.prev is None and self.next is None

    def split(self, size: int, new_is_rest: bool = False) -> Block:
        """Cut the block to `size` bytes and return the rest, in the same state, chained behind it.

        If blocks are numbered by creation, the new number goes to the first part or to the rest, as in torch.
        """
        numbers = self.arena.pool.numbers
        if numbers is None:
            order = self.order + size
        elif new_is_rest:
            order = next(numbers)
        else:
            order, self.order = self.order, next(numbers)
        rest = Block(self.address + size, self.size - size, order, self.arena, self.region)
        rest.state = self.state
        rest.prev = self
        rest.next = after = self.next
        if after is not None:
            after.prev = rest
        self.size = size
        self.next = rest
        return rest

    def absorb_next(self) -> None:
        """Merge the next block into this one; the lower address survives, so a segment's head stays."""
        gone = self.next
        assert gone is not None
        self.size += gone.size
        self.next = after = gone.next
        if after is not None:
            after.prev = self

    def join_previous(self) -> Block:
        """Merge the block, with its creation number, into the previous one and return that."""
        before = self.prev
        assert before is not None
        if self.arena.pool.numbers is not None:
            before.order = self.order
        before.absorb_next()
        return before


class Region:
    """The reserved address space of one expandable segment, in which pages are mapped and unmapped."""

    __slots__ = ("address", "page", "size")

    def __init__(self, address: int, size: int, page: int) -> None:
        self.address = address
        self.size = size
        self.page = page


class Ordering:
    """The order of free blocks of equal size, as a number per block: see settings.TieBreak.

    A block that begins `n` bytes later in its segment has a number higher by `n`. If blocks are numbered by creation,
    `numbers` provides the next number instead.
    """

    def __init__(self, rule: TieBreak) -> None:
        self.numbers = count() if rule is TieBreak.OLDEST_BLOCK else None
        self._segments = count(1) if rule is TieBreak.OLDEST_SEGMENT else None

    def of_new_segment(self, address: int) -> int:
        if self.numbers is not None:
            return next(self.numbers)
        return address if self._segments is None else next(self._segments) << ADDRESS_BITS | address


class Pool:
    """The small or large half of a pool: the default one, a CUDA graph's or a MemPool's.

    page: the page size of its expandable segments; None if it has plain ones. age: the number of searches of its free
    lists; used only by garbage collection.
    """

    __slots__ = ("age", "arenas", "id", "numbers", "page", "settings", "small", "splits_below", "tail")

    def __init__(
        self,
        settings: Settings,
        small: bool,
        pool: tuple[int, int],
        expandable: bool,
        whole: bool,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.id = pool
        self.numbers = numbers
        self.small = small
        self.page = settings.page_size(small) if expandable else None
        self.settings = settings
        self.age = 0
        self.arenas: dict[int, Arena] = {}
        # A block is split if more than `tail` bytes remain and the request is below `splits_below`.
        fine = small or expandable or (settings.expandable_segments and settings.torch < (2, 10))
        self.tail = MIN_BLOCK - 1 if fine else SMALL_REQUEST
        largest = None if small or expandable else settings.max_split_size
        self.splits_below = 0 if whole else UNBOUNDED if largest is None else largest

    def arena(self, stream: int) -> Arena:
        arena = self.arenas.get(stream)
        if arena is None:
            arena = self.arenas[stream] = Arena(self, stream)
        return arena

    def in_stream_order(self) -> list[Arena]:
        return [self.arenas[stream] for stream in sorted(self.arenas)]

    @property
    def reserved(self) -> int:
        return sum(arena.reserved for arena in self.arenas.values())


class PoolPair:
    """Both halves of one pool, and its owner's options (see Allocator.add_pool)."""

    __slots__ = ("large", "on_oom", "released", "small")

    def __init__(
        self,
        settings: Settings,
        pool: tuple[int, int],
        expandable: bool,
        whole: bool,
        on_oom: bool,
        numbers: Iterator[int] | None,
    ) -> None:
        self.small = Pool(settings, True, pool, expandable, whole, numbers)
        self.large = Pool(settings, False, pool, expandable, whole, numbers)
        self.on_oom = on_oom
        self.released = False

    @property
    def reserved(self) -> int:
        return self.small.reserved + self.large.reserved


class Arena:
    """One pool's blocks on one stream. A block never changes its arena."""

    __slots__ = ("free", "pool", "reserved", "stream", "unmapped")

    def __init__(self, pool: Pool, stream: int) -> None:
        self.pool = pool
        self.stream = stream
        self.free = FreeList()
        self.unmapped: list[Block] = []  # by address
        self.reserved = 0

    def put(self, block: Block) -> Block:
        """Add a free block to the free list, merged with its free neighbours; return the merged block."""
        free = self.free
        after = block.next
        if after is not None and after.state is INACTIVE:
            free.remove(after)
            block.size += after.size
            block.next = beyond = after.next
            if beyond is not None:
                beyond.prev = block
        before = block.prev
        if before is not None and before.state is INACTIVE:
            free.remove(before)
            block = block.join_previous()
        block.born = self.pool.age
        free.add(block)
        return block

    def add(self, block: Block) -> None:
        """Add a block without free neighbours to the free list."""
        block.born = self.pool.age
        self.free.add(block)


class Totals(NamedTuple):
    """Bytes of one pool, under torch's names; inactive_split is 0 for expandable segments, as in torch."""

    allocated: int
    active: int
    requested: int
    reserved: int
    inactive_split: int


def add_up(heads: Iterable[Block], small: bool) -> Totals:
    """Return the sums over all chains of blocks of the small or large pools."""
    allocated = active = requested = reserved = inactive_split = 0
    for head in heads:
        block: Block | None = head if head.arena.pool.small == small else None
        while block is not None:
            if block.state is not UNMAPPED:
                reserved += block.size
                if block.state is not INACTIVE:
                    active += block.size
                    requested += block.requested
                    if block.state is ALLOCATED:
                        allocated += block.size
                elif not block.whole and block.region is None:
                    inactive_split += block.size
            block = block.next
    return Totals(allocated, active, requested, reserved, inactive_split)


def segments_of(head: Block) -> Iterator[Segment]:
    """Yield each mapped run of the chain that begins with `head` as one segment."""
    run: list[Block] = []
    block: Block | None = head
    while block is not None:
        if block.state is not UNMAPPED:
            run.append(block)
        elif run:
            yield _segment(run)
            run = []
        block = block.next
    if run:
        yield _segment(run)


def _segment(run: list[Block]) -> Segment:
    head = run[0]
    return Segment(
        device=0,
        address=head.address,
        stream=head.arena.stream,
        small=head.arena.pool.small,
        pool=head.arena.pool.id,
        expandable=head.region is not None,
        sizes=tuple([block.size for block in run]),
        requested=tuple([block.requested for block in run]),
        states=tuple([block.state for block in run]),
    )
