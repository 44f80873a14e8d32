"""The simulated allocator's blocks, chained in address order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import NamedTuple

from ..heap import ALLOCATED, INACTIVE, Segment
from ..settings import MIN_BLOCK, SMALL_REQUEST, Settings, TieBreak

ADDRESS_BITS = 64
ORDER_BITS = 96
ORDER_MASK = (1 << ORDER_BITS) - 1
CHUNK = 1024
UNMAPPED = "unmapped"  # address space of an expandable segment without memory behind it
UNBOUNDED = 1 << 62


class FreeList:
    """Blocks sorted by key: by size, then by the order of blocks of equal size.

    `keys` and `blocks` are parallel lists in chunks of bounded length, so an insertion moves at most one chunk.
    `bounds[i]` is the largest key allowed in chunk i; the last chunk has no bound. `start` is the first chunk of both,
    always the same two lists.
    """

    __slots__ = ("blocks", "bounds", "keys", "start")

    def __init__(self) -> None:
        self.keys: list[list[int]] = [[]]
        self.blocks: list[list[Block]] = [[]]
        self.bounds: list[int] = []
        self.start = self.keys[0], self.blocks[0]

    def __iter__(self) -> Iterator[Block]:
        return chain.from_iterable(self.blocks)

    def add(self, block: Block) -> None:
        key = block.key
        at = bisect_left(self.bounds, key) if self.bounds else 0
        keys = self.keys[at]
        index = bisect_left(keys, key)
        keys.insert(index, key)
        self.blocks[at].insert(index, block)
        if len(keys) > CHUNK:
            self.halve(at)

    def remove(self, block: Block) -> None:
        """Remove the block. Raises KeyError if it is not in the list."""
        key = block.key
        at = bisect_left(self.bounds, key) if self.bounds else 0
        keys = self.keys[at]
        index = bisect_left(keys, key)
        if index == len(keys) or keys[index] != key:
            raise KeyError(key)
        self._pop(at, index)

    def take(self, size: int) -> Block | None:
        """Remove and return the first block of at least `size` bytes."""
        key = size << ORDER_BITS
        at = bisect_left(self.bounds, key) if self.bounds else 0
        keys = self.keys[at]
        index = bisect_left(keys, key)
        if index == len(keys):
            at, index = at + 1, 0
            if at == len(self.keys):
                return None
        return self._pop(at, index)

    def first(self, size: int) -> Block | None:
        """Return the first block of at least `size` bytes without removing it."""
        key = size << ORDER_BITS
        at = bisect_left(self.bounds, key)
        index = bisect_left(self.keys[at], key)
        if index < len(self.keys[at]):
            return self.blocks[at][index]
        return self.blocks[at + 1][0] if at + 1 < len(self.keys) else None

    def at_least(self, size: int) -> Iterator[Block]:
        """Yield the blocks of at least `size` bytes in order. The list must not change meanwhile."""
        key = size << ORDER_BITS
        at = bisect_left(self.bounds, key)
        index = bisect_left(self.keys[at], key)
        return chain(self.blocks[at][index:], *self.blocks[at + 1 :])

    def halve(self, at: int) -> None:
        """Cut a chunk that is too long."""
        keys, blocks = self.keys[at], self.blocks[at]
        middle = len(keys) // 2
        self.bounds.insert(at, keys[middle - 1])
        self.keys.insert(at + 1, keys[middle:])
        self.blocks.insert(at + 1, blocks[middle:])
        del keys[middle:], blocks[middle:]

    def _pop(self, at: int, index: int) -> Block:
        """Remove and return a block; merge a chunk that is empty then with a neighbour."""
        keys = self.keys[at]
        del keys[index]
        block = self.blocks[at].pop(index)
        if not keys and self.bounds:
            at = min(at, len(self.bounds) - 1)
            self.keys[at] += self.keys.pop(at + 1)
            self.blocks[at] += self.blocks.pop(at + 1)
            del self.bounds[at]
        return block


class Block:
    """A run of bytes with one state: ALLOCATED, AWAITING or INACTIVE (see heap), or UNMAPPED.

    `key` sorts free blocks: the size, then the block's order in the lowest ORDER_BITS bits (see Ordering). `born` is
    the pool's age when the block last entered its free list. `shared`: another stream uses the block, so a free must
    wait for that stream.
    """

    __slots__ = ("address", "arena", "born", "key", "next", "prev", "region", "requested", "shared", "size", "state")

    def __init__(self, address: int, size: int, key: int, arena: Arena, region: Region | None = None) -> None:
        self.address = address
        self.key = key
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
        numbers, order, left = self.arena.pool.numbers, self.key & ORDER_MASK, self.size - size
        if numbers is None:
            order_of_rest = order + size
        elif new_is_rest:
            order_of_rest = next(numbers)
        else:
            order, order_of_rest = next(numbers), order
        self.key = size << ORDER_BITS | order
        rest = Block(self.address + size, left, left << ORDER_BITS | order_of_rest, self.arena, self.region)
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
        self.key += gone.size << ORDER_BITS
        self.next = after = gone.next
        if after is not None:
            after.prev = self

    def join_previous(self) -> Block:
        """Merge the block, with its creation number, into the previous one and return that."""
        before = self.prev
        assert before is not None
        if self.arena.pool.numbers is not None:
            before.key = before.size << ORDER_BITS | self.key & ORDER_MASK
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
    """The order of free blocks of equal size, as a number per block: see settings.TieBreak. Keys contain it.

    A block that begins `n` bytes later in its segment has a number higher by `n`. If blocks are numbered by creation,
    `numbers` provides the next number instead.
    """

    def __init__(self, rule: TieBreak) -> None:
        self.numbers = count() if rule is TieBreak.OLDEST_BLOCK else None
        self._segments = count(1) if rule is TieBreak.OLDEST_SEGMENT else None

    def key(self, address: int, size: int) -> int:
        """Return the key of a new segment's block."""
        if self.numbers is not None:
            order = next(self.numbers)
        else:
            order = address if self._segments is None else next(self._segments) << ADDRESS_BITS | address
        return size << ORDER_BITS | order


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

    def cached(self) -> list[Arena]:
        """Return the arenas with free blocks by stream; a flush visits no others."""
        found = [arena for arena in self.arenas.values() if arena.free.start[0]]
        return sorted(found, key=lambda arena: arena.stream) if len(found) > 1 else found

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
            block.absorb_next()
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
