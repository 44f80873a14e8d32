"""The sources of memory for a request: the cache, then the driver, after releasing cached memory if needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..heap import DEFAULT_POOL
from ..settings import SMALL_REQUEST, Settings
from . import expandable
from .blocks import UNBOUNDED, Arena, Block, Pool, PoolPair
from .device import Device
from .expandable import bytes_of_free_pages, shrink

Heads = dict[Block, None]
"""The first block of each segment, in address order."""


def release_segment(block: Block, device: Device, heads: Heads) -> None:
    """Release a plain segment that is one free block."""
    block.arena.free.remove(block)
    del heads[block]
    device.take_back(block.arena, block.address, block.size)
    device.addresses.give_back(block.address)


def flush(pools: Iterable[Pool], device: Device, heads: Heads) -> None:
    """Release every free segment and every free page of expandable ones."""
    for pool in pools:
        free = [block for arena in pool.cached() for block in arena.free]
        if pool.page is None:
            for block in [block for block in free if block.prev is None and block.next is None]:
                release_segment(block, device, heads)
        else:
            for block in free:
                shrink(block, device, heads)


def oversize(arena: Arena, size: int, least: int, gone: Sequence[Block]) -> tuple[list[Block], bool]:
    """Return the blocks of at least `least` (max_split_size) bytes to release, and whether they suffice.

    Picks the smallest block that suffices alone, else the largest ones until their sum suffices; skips those in `gone`.
    """
    wanted = max(size, least)
    free = [block for block in arena.free.at_least(least) if block.region is None and block not in gone]
    enough = next((block for block in free if block.size >= wanted), None)
    if enough is not None:
        return [enough], True
    chosen: list[Block] = []
    released = 0
    for block in reversed(free):
        if released >= wanted:
            break
        released += block.size
        chosen.append(block)
    return chosen, released >= wanted


def _too_old(pool: Pool, threshold: float, device: Device) -> list[Block]:
    """Return the free segments that garbage collection releases, in order.

    Collects segments older than the average, repeatedly, until reserved bytes are below the threshold (a share of the
    limit). A block's age is the number of searches of its pool since it was freed.
    """
    excess = 0 if device.limit is None else device.reserved - int(threshold * device.limit)
    blocks = [block for arena in pool.cached() for block in arena.free if block.whole] if excess > 0 else []
    chosen: list[Block] = []
    while blocks and excess > 0:
        average = sum(pool.age - block.born for block in blocks) / len(blocks)
        old = [block for block in blocks if block.region is None and pool.age - block.born >= average]
        if not old:
            break
        chosen += old
        excess -= sum(block.size for block in old)
        going = set(old)
        blocks = [block for block in blocks if block not in going]
    return chosen


class Foreseen(NamedTuple):
    """What a request makes the allocator release: free segments in order, then everything if it flushes."""

    released: list[Block]
    flushes: bool


class Supply:
    """The pools, the free segments, and torch's chain of attempts to serve a request.

    wait: waits until all streams finish with the freed blocks of a pool; of all pools for the default one. takes_first:
    whether the smallest block that fits is taken, without further rules.
    """

    def __init__(self, settings: Settings, device: Device, wait: Callable[[tuple[int, int]], None]) -> None:
        self.settings = settings
        self.device = device
        self.capturing = False
        self.pools: dict[tuple[int, int], PoolPair] = {}
        self.heads: Heads = {}
        self._wait = wait
        self.collects = settings.garbage_collection_threshold > 0 and device.limit is not None
        self.takes_first = settings.max_split_size is None and not (settings.expandable_segments or self.collects)
        self.add_pool(DEFAULT_POOL)

    def add_pool(
        self, pool: tuple[int, int], *, plain: bool = False, whole: bool = False, on_oom: bool = False
    ) -> PoolPair:
        """See Allocator.add_pool."""
        plain = plain or (pool != DEFAULT_POOL and self.settings.torch < (2, 5))
        grows = self.settings.expandable_segments and not plain
        pair = self.pools[pool] = PoolPair(self.settings, pool, grows, whole, on_oom, self.device.ordering.numbers)
        return pair

    def arena(self, request: int, stream: int, pool: tuple[int, int]) -> tuple[Arena, int]:
        """Return a request's arena and rounded size."""
        size = self.settings.round(request)
        pair = self.pools.get(pool) or self.add_pool(pool)
        return (pair.small if size <= SMALL_REQUEST else pair.large).arena(stream), size

    def best_fit(self, arena: Arena, size: int) -> Block | None:
        """Take the cached block for a request out of the free list."""
        if self.collects:
            arena.pool.age += 1
        block = self.cached(arena, size)
        if block is not None:
            arena.free.remove(block)
        return block

    def foresee(self, arena: Arena, size: int, full: bool) -> Foreseen | None:
        """Return what `obtain` would release; None if cached memory serves the request.

        full: assume that the driver has no memory before a flush.
        """
        if self.cached(arena, size) is not None:
            return None
        gone = self.too_old()
        at_once = self.settings.torch >= (2, 11)
        full = full and self.missing(arena, size) > 0
        fits = not full and self._fits(arena, size, gone)
        if fits or (at_once and self._shared_block(arena, size) is not None):
            return Foreseen(gone, False)
        least = self.settings.max_split_size
        if least is not None:
            chosen, enough = oversize(arena, size, least, gone)
            gone = gone + chosen
            if enough and not full and self._fits(arena, size, gone):
                return Foreseen(gone, False)
        return Foreseen(gone, self._may_flush(arena))

    def has_memory(self, arena: Arena, size: int, full: bool) -> bool:
        """Return whether the cache or, unless it is `full`, the driver can serve a request without a flush."""
        return self.cached(arena, size) is not None or (not full and self._fits(arena, size, []))

    def cached(self, arena: Arena, size: int) -> Block | None:
        """Return the cached block for a request."""
        block = arena.free.first(size) if arena.pool.page is None else expandable.best_of(arena.free.at_least(size))
        return None if block is None or block.size >= self.too_large(size) else block

    def too_large(self, size: int) -> int:
        """Return the size from which a cached block is too large for a request, by the rules of max_split_size."""
        least = self.settings.max_split_size
        if least is None:
            return UNBOUNDED
        return least if size < least else size + self.settings.max_non_split_rounding

    def obtain(self, arena: Arena, size: int, lender: tuple[int, int] | None = None) -> Block | None:
        """Return new memory for a request, released from the cache first if needed: torch's chain of attempts.

        lender: the MemPool that serves it if its turn comes; None: any with use_on_oom.
        """
        self._give_back(self.too_old())
        at_once = self.settings.torch >= (2, 11)  # earlier releases flush before they look in other pools
        block = self._new(arena, size) or (self._take_shared(arena, size, lender) if at_once else None)
        least = self.settings.max_split_size
        if block is None and least is not None:
            chosen, enough = oversize(arena, size, least, ())
            self._give_back(chosen)
            block = self._new(arena, size) if enough else None
        if block is None and self._may_flush(arena):
            block = self.after_flush(arena, size)
        return block or (None if at_once else self._take_shared(arena, size, lender))

    def after_flush(self, arena: Arena, size: int, released: Sequence[Block] = ()) -> Block | None:
        self._give_back(released)
        self.empty(DEFAULT_POOL)
        self.device.counters.alloc_retries += 1
        return self._new(arena, size)

    def empty(self, pool: tuple[int, int]) -> None:
        """See Allocator.empty_cache."""
        if pool == DEFAULT_POOL:
            self.device.counters.stream_syncs += 1
        self._wait(pool)
        flush(self._flushed(pool), self.device, self.heads)

    def flush_sizes(self, ended: Iterable[tuple[int, int]] = ()) -> dict[tuple[int, int], list[int]]:
        """Return the sizes of the segments and pages that a flush would release now, by pool.

        ended: private pools that it would release in addition.
        """
        more = [pair for pool in ended if (pair := self.pools.get(pool)) is not None and not pair.released]
        halves = [half for pair in more for half in (pair.small, pair.large)]
        sizes: dict[tuple[int, int], list[int]] = {}
        for half in [*self._flushed(DEFAULT_POOL), *halves]:
            found = sizes.setdefault(half.id, [])
            for block in (block for arena in half.cached() for block in arena.free):
                size = (block.size if block.whole else 0) if half.page is None else bytes_of_free_pages(block)
                if size:
                    found.append(size)
        return sizes

    def _flushed(self, pool: tuple[int, int]) -> list[Pool]:
        """Return the pools that empty_cache(pool) covers."""
        ended = [pair for id, pair in self.pools.items() if pair.released and pool in (DEFAULT_POOL, id)]
        halves = [half for pair in ended for half in (pair.small, pair.large) if half.arenas]
        default = self.pools[DEFAULT_POOL]
        return [default.large, default.small, *halves] if pool == DEFAULT_POOL else halves

    def _may_flush(self, arena: Arena) -> bool:
        """Return whether a flush is allowed: not in a graph capture; before torch 2.13 not for a MemPool either."""
        return not self.capturing and (arena.pool.id == DEFAULT_POOL or self.settings.torch >= (2, 13))

    def too_old(self) -> list[Block]:
        """Return the free segments that garbage collection releases now."""
        if not self.collects:
            return []
        return _too_old(self.pools[DEFAULT_POOL].large, self.settings.garbage_collection_threshold, self.device)

    def _give_back(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            release_segment(block, self.device, self.heads)

    def _take_shared(self, arena: Arena, size: int, lender: tuple[int, int] | None) -> Block | None:
        block = self._shared_block(arena, size, lender)
        if block is not None:
            block.arena.free.remove(block)
        return block

    def _shared_block(self, arena: Arena, size: int, lender: tuple[int, int] | None = None) -> Block | None:
        """Return a cached block of a MemPool with use_on_oom. Torch skips its expandable blocks, from 2.10 on."""
        if arena.pool.id != DEFAULT_POOL:
            return None
        pairs = [pair for id, pair in self.pools.items() if (pair.on_oom if lender is None else id == lender)]
        sharing = [pair.small if arena.pool.small else pair.large for pair in pairs]
        skipped = self.settings.torch >= (2, 10) and lender is None
        cached = (self.cached(pool.arena(arena.stream), size) for pool in sharing if pool.page is None or not skipped)
        return next((block for block in cached if block is not None), None)

    def _fits(self, arena: Arena, size: int, gone: list[Block]) -> bool:
        """Return whether new memory is available once `gone` are released."""
        return self.has_room(arena, size, sum(block.size for block in gone))

    def has_room(self, arena: Arena, size: int, freed: int) -> bool:
        """Return whether new memory is available once `freed` bytes are released."""
        request = self.settings.segment_size(size)
        return self.device.allows(request - freed) and self.device.holds(self.missing(arena, size), freed)

    def missing(self, arena: Arena, size: int) -> int:
        """Return the driver memory that a request needs if the cache does not serve it."""
        if arena.pool.page is None:
            return self.settings.segment_size(size)
        return sum(expandable.mappings(arena, size))

    def _new(self, arena: Arena, size: int) -> Block | None:
        """Try once to get new memory."""
        request = self.settings.segment_size(size)
        if not self.device.allows(request):
            return None
        if arena.pool.page is not None:
            return expandable.grow(arena, size, self.device, self.heads)
        if not self.device.holds(request):
            return None
        address = self.device.addresses.take(request)
        block = Block(address, request, self.device.ordering.key(address, request), arena)
        self.heads[block] = None
        self.device.give(arena, block.address, request)
        return block
