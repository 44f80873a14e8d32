"""Cached requests and frees without calls: most operations of a program are one of these two."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ..heap import ALLOCATED, INACTIVE
from ..settings import MIN_BLOCK, SMALL_REQUEST
from . import blocks as limits
from .allocator import Allocator
from .blocks import ORDER_BITS, ORDER_MASK, UNBOUNDED, UNMAPPED, Arena, Block
from .expandable import best_of

Request = tuple[int, int, tuple[int, int]]
"""Bytes, stream and pool."""


Entry = tuple[list[int], list[Block], list[int], int, int, int, int, int, int, Arena]


class FastPath:
    """Does what Allocator.malloc and Allocator.free do, for one program on one allocator.

    requests: the program's distinct requests; the first is not used. What the cache cannot serve, and free lists of
    several chunks, are left to the allocator.
    """

    def __init__(self, allocator: Allocator, requests: Sequence[Request | None]) -> None:
        self._allocator = allocator
        self._requests = requests
        self._served: list[Entry | None] = [None] * len(requests)
        self._arenas: dict[tuple[int, tuple[int, int], bool], Arena] = {}
        self._rounds_plainly = not any(allocator.settings.roundup_power2_divisions)
        self._takes_any = allocator.settings.max_split_size is None
        self._spare: list[Block] = []
        """Blocks that were merged into others, to be used again: this is faster than a new one."""

    def run(self, codes: Sequence[int], blocks: list[Block | None], begin: int, end: int) -> int:
        """Run the operations from `begin` to `end`; return the position of the first other operation, or `end`.

        codes: by operation, the number of its request, or ~n to free the block blocks[n], or 0 for any other. The
        blocks of the requests are appended to `blocks`, and freed ones replaced by None.
        """
        allocator, served, append = self._allocator, self._served, blocks.append
        active, peak, collects, spare = allocator.active, allocator.peak_active, allocator.supply.collects, self._spare
        longest, numbers = limits.CHUNK, allocator.supply.device.ordering.numbers
        position = begin
        for position in range(begin, end):
            code = codes[position]
            if code >= 0:
                entry = served[code]
                if entry is None:
                    found = self._requests[code]
                    if found is None:
                        break
                    entry = served[code] = self._entry(*found)
                keys, cached, bounds, size, key, moves, tail, too_large, request, arena = entry
                index = bisect_left(keys, key)
                block = after = None
                if index < len(keys) and not bounds:
                    block = cached[index]
                    after = block.next
                    if after is not None and after.state is UNMAPPED:
                        block = best_of(cached[index:])
                        assert block is not None
                        index, after = bisect_left(keys, block.key, index), block.next
                if block is None or block.size >= too_large:
                    allocator.active, allocator.peak_active = active, peak
                    append(allocator.malloc(request, arena.stream, arena.pool.id))
                    active, peak = allocator.active, allocator.peak_active
                    continue
                left = block.size - size
                if left > tail:  # the rest takes the block's place in the free list, or one before it
                    rest_key = block.key - moves
                    if spare:
                        rest = spare.pop()
                        rest.address = block.address + size
                        rest.size = left
                        rest.key = rest_key
                        rest.arena = arena
                        rest.region = block.region
                        rest.requested = 0
                        rest.state = INACTIVE
                    else:
                        rest = Block(block.address + size, left, rest_key, arena, block.region)
                    rest.prev = block
                    rest.next = after
                    if after is not None:
                        after.prev = rest
                    block.next = rest
                    block.size = size
                    if numbers is None:
                        block.key -= left << ORDER_BITS
                    else:
                        block.key = key | next(numbers)
                    if index and keys[index - 1] > rest_key:
                        del keys[index], cached[index]
                        index = bisect_left(keys, rest_key, 0, index)
                        keys.insert(index, rest_key)
                        cached.insert(index, rest)
                    else:
                        keys[index] = rest_key
                        cached[index] = rest
                    active += size
                else:
                    del keys[index], cached[index]
                    active += block.size
                block.state = ALLOCATED
                block.requested = request
                if active > peak:
                    peak = active
                append(block)
                if collects:
                    arena.pool.age += 1
                    if left > tail:
                        rest.born = arena.pool.age
            else:
                number = ~code
                freed = blocks[number]
                if freed is None:  # its request failed
                    continue
                free = freed.arena.free
                if freed.shared or free.bounds:
                    allocator.active = active
                    allocator.free(freed)
                    active = allocator.active
                    blocks[number] = None
                    continue
                keys, cached = free.start
                block, key = freed, freed.key
                active -= block.size
                block.state = INACTIVE
                index = -1  # of the free neighbour that the merged block replaces
                after = block.next
                if after is not None and after.state is INACTIVE:
                    index = bisect_left(keys, after.key)
                    block.size += after.size
                    block.key = key = key + (after.size << ORDER_BITS)
                    spare.append(after)
                    block.next = after = after.next
                    if after is not None:
                        after.prev = block
                before = block.prev
                if before is not None and before.state is INACTIVE:
                    if index >= 0:
                        del keys[index], cached[index]
                    index = bisect_left(keys, before.key)
                    before.size += block.size
                    if numbers is None:
                        before.key = key = before.key + (block.size << ORDER_BITS)
                    else:
                        before.key = key = before.size << ORDER_BITS | key & ORDER_MASK
                    before.next = after
                    if after is not None:
                        after.prev = before
                    spare.append(block)
                    block = before
                if index < 0:
                    index = bisect_left(keys, key)
                    keys.insert(index, key)
                    cached.insert(index, block)
                    if len(keys) > longest:
                        free.halve(0)
                elif index + 1 < len(keys) and keys[index + 1] < key:
                    del keys[index], cached[index]
                    index = bisect_left(keys, key, index)
                    keys.insert(index, key)
                    cached.insert(index, block)
                else:
                    keys[index] = key
                    cached[index] = block
                if collects:
                    block.born = block.arena.pool.age
                blocks[number] = None
        else:
            position = end
        allocator.active, allocator.peak_active = active, peak
        return position

    def _entry(self, request: int, stream: int, pool: tuple[int, int]) -> Entry:
        """Return what serving a request needs.

        After the free list and the size: the key from which blocks are large enough, by how much the rest's key is
        lower than the block's, how many bytes may stay unsplit, and the size from which a block is too large.
        """
        supply = self._allocator.supply
        size = (
            -(-request // MIN_BLOCK) * MIN_BLOCK or MIN_BLOCK
            if self._rounds_plainly
            else supply.settings.round(request)
        )
        place = stream, pool, size <= SMALL_REQUEST
        arena = self._arenas.get(place)
        if arena is None:
            arena, _ = supply.arena(request, stream, pool)
            self._arenas[place] = arena
        half, free = arena.pool, arena.free
        keys, cached = free.start
        key = size << ORDER_BITS
        moves = key - size if half.numbers is None else key
        tail = half.tail if size < half.splits_below else UNBOUNDED
        too_large = UNBOUNDED if self._takes_any else supply.too_large(size)
        return keys, cached, free.bounds, size, key, moves, tail, too_large, request, arena
