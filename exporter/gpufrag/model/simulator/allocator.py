"""Torch's native CUDA caching allocator, simulated block for block.

Follows torch 2.11: of equal free blocks it takes the one at the lowest address (later versions prefer the oldest
segment). Arguments provide what the requests do not determine: the driver's free memory, segment addresses, and when
streams finish with a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ..allocatable import Driver, limited
from ..heap import ALLOCATED, AWAITING, DEFAULT_POOL, INACTIVE, Heap, Segment
from ..settings import MIN_BLOCK, SMALL_REQUEST, Settings
from ..trace.events import Event
from .addresses import AddressSpace
from .blocks import Arena, Block, Ordering, PoolPair, Totals, add_up, segments_of
from .device import Counters, Device
from .expandable import mapped_room, mappings, reserve
from .supply import Foreseen, Heads, Supply


class Allocator:
    """One device's allocator: malloc and free change its blocks, `heap` and `totals` return its state.

    driver: the reading before the first request: free bytes (None: unlimited), size (which bounds the address space of
    an expandable segment), and the process's limit. observe: called when a segment is added or removed.
    """

    def __init__(
        self,
        settings: Settings = Settings(),
        driver: Driver = Driver(),
        addresses: AddressSpace | None = None,
        observe: Callable[[Event], None] | None = None,
    ) -> None:
        self.settings = settings
        self.active = 0
        self.peak_active = 0
        self._device = Device(
            limited(driver, settings), addresses or AddressSpace(), Ordering(settings.tie_break), observe
        )
        self.supply = supply = Supply(settings, self._device, self._wait)
        self._waiting: dict[Block, None] = {}
        self._pools, self._takes_first = supply.pools, supply.takes_first
        self._rounds_plainly = not any(settings.roundup_power2_divisions)

    @property
    def counters(self) -> Counters:
        return self._device.counters

    @property
    def reserved(self) -> int:
        return self._device.reserved

    @property
    def peak_reserved(self) -> int:
        return self._device.peak_reserved

    @property
    def driver(self) -> Driver:
        """Return the driver's reading now."""
        return self._device.driver

    @property
    def capacity(self) -> int | None:
        """Driver memory for this process, used and free, in bytes; None if unknown."""
        return self._device.capacity

    @capacity.setter
    def capacity(self, capacity: int | None) -> None:
        self._device.capacity = capacity

    @property
    def waits(self) -> bool:
        """Whether freed blocks wait for a stream; a flush clears them."""
        return bool(self._waiting)

    def flush_sizes(self, ended: Iterable[tuple[int, int]] = ()) -> dict[tuple[int, int], list[int]]:
        """Return the sizes that empty_cache would release, by pool; without blocks that wait for a stream.

        ended: private pools that it would release in addition.
        """
        return self.supply.flush_sizes(ended)

    @property
    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured; the allocator then releases no memory."""
        return self.supply.capturing

    @capturing.setter
    def capturing(self, capturing: bool) -> None:
        self.supply.capturing = capturing

    def add_pool(
        self, pool: tuple[int, int], *, plain: bool = False, whole: bool = False, on_oom: bool = False
    ) -> PoolPair:
        """Create a private pool; malloc creates a missing one without options.

        The options are a MemPool's: `plain` has its own allocator (no expandable segments), `whole` is no_split,
        `on_oom` is use_on_oom.
        """
        return self.supply.add_pool(pool, plain=plain, whole=whole, on_oom=on_oom)

    def release_pool(self, pool: tuple[int, int]) -> None:
        """Mark the pool as ended with its graph or MemPool: a flush now releases its free segments.

        Ignores a pool that has served no request.
        """
        if pool in self._pools:
            self._pools[pool].released = True

    def is_released(self, pool: tuple[int, int]) -> bool:
        return pool in self._pools and self._pools[pool].released

    def adopt(self, segment: Segment) -> list[Block]:
        """Add a recorded segment and return its blocks. Expects segments in address order."""
        pair = self._pools.get(segment.pool) or self.add_pool(segment.pool)
        arena = (pair.small if segment.small else pair.large).arena(segment.stream)
        blocks = adopt(segment, arena, self._device, self.supply.heads)
        for block in blocks:
            if block.state is INACTIVE:
                arena.add(block)
            else:
                self._take_over(block)
        return blocks

    def malloc(
        self,
        request: int,
        stream: int = 0,
        pool: tuple[int, int] = DEFAULT_POOL,
        lender: tuple[int, int] | None = None,
    ) -> Block | None:
        """Return the block that serves a request of `request` bytes; None is an out-of-memory error.

        lender: the MemPool with use_on_oom that serves it if everything else fails; None: any with that option.
        """
        if self._rounds_plainly:
            size = (request + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK or MIN_BLOCK
        else:
            size = self.settings.round(request)
        pair = self._pools.get(pool) or self.add_pool(pool)
        half = pair.small if size <= SMALL_REQUEST else pair.large
        arena = half.arenas.get(stream) or half.arena(stream)
        block = arena.free.take(size) if self._takes_first else self.supply.best_fit(arena, size)
        if block is None:
            block = self.supply.obtain(arena, size, lender)
            if block is None:
                self._device.counters.ooms += 1
                return None
            arena = block.arena
            half = arena.pool
        if block.size - size > half.tail and size < half.splits_below:
            rest = block.split(size)
            rest.born = half.age
            arena.free.add(rest)
        block.state = ALLOCATED
        block.requested = request
        self.active = active = self.active + block.size
        if active > self.peak_active:
            self.peak_active = active
        return block

    def malloc_flushed(
        self, request: int, stream: int, pool: tuple[int, int], released: Sequence[Block] = ()
    ) -> Block | None:
        """Release `released`, flush and ask the driver, without trying the cache."""
        arena, size = self.supply.arena(request, stream, pool)
        block = self.supply.after_flush(arena, size, released)
        if block is not None:
            self._activate(block, size, request)
        return block

    def foresee(self, request: int, stream: int, pool: tuple[int, int], full: bool = False) -> Foreseen | None:
        """Return what malloc would release for a request; None if cached memory serves it.

        full: assume that the driver has no memory before a flush.
        """
        return self.supply.foresee(*self.supply.arena(request, stream, pool), full)

    def has_memory(self, request: int, stream: int, pool: tuple[int, int]) -> bool:
        """Return whether the pool or the driver can serve a request before anything is released."""
        return self.supply.has_memory(*self.supply.arena(request, stream, pool), full=False)

    def has_room(self, request: int, stream: int, pool: tuple[int, int], freed: int) -> bool:
        """Return whether the driver can serve a request once `freed` more bytes are released."""
        return self.supply.has_room(*self.supply.arena(request, stream, pool), freed)

    def missing(self, request: int, stream: int, pool: tuple[int, int]) -> int:
        """Return the driver memory in bytes that a request needs if the cache does not serve it."""
        return self.supply.missing(*self.supply.arena(request, stream, pool))

    def maps_in_vain(self, request: int, stream: int, pool: tuple[int, int], capacity: int | None) -> bool:
        """Return whether a request that needs new pages maps some before the driver has no more.

        capacity: driver memory for this process in bytes, None if unknown.
        """
        arena, size = self.supply.arena(request, stream, pool)
        if arena.pool.page is None or capacity is None or not self._device.allows(self.settings.segment_size(size)):
            return False
        first, *rest = mappings(arena, size) or [0]
        usable = Driver.usable(capacity - self.reserved)
        return bool(rest) and first <= usable < first + sum(rest)

    def places_in_expandable(self, request: int, stream: int, pool: tuple[int, int]) -> tuple[int | None, int | None]:
        """Return the address at which the cache serves a request, and the one of free memory at which a segment grows.

        None: no block is large enough. The second is where a request gets memory after a flush.
        """
        arena, size = self.supply.arena(request, stream, pool)
        blocks = self.supply.cached(arena, size), None if arena.pool.page is None else mapped_room(arena, size)
        cached, room = (None if block is None else block.address for block in blocks)
        return cached, room

    def is_exhausted(self, request: int, stream: int, full: bool = False) -> bool:
        """Return whether the default pool has no memory for a request, and a flush would release none.

        full: assume that the driver has no memory.
        """
        if self._waiting or any(self.supply.flush_sizes().values()):
            return False
        return not self.supply.has_memory(*self.supply.arena(request, stream, DEFAULT_POOL), full)

    def free(self, block: Block) -> None:
        """Free the block. Raises ValueError if it is not allocated."""
        if block.state is not ALLOCATED:
            raise ValueError(f"the block at {block.address:#x} is {block.state}, not allocated")
        if block.shared:
            block.state = AWAITING
            self._waiting[block] = None
        else:
            self.active -= block.size
            block.state = INACTIVE
            block.arena.put(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """Mark the block as used by another stream: once freed it waits until `complete`."""
        block.shared = block.shared or stream != block.arena.stream

    def complete(self, block: Block) -> None:
        """Make a freed block available once its streams finished. Does nothing if a flush already waited for it."""
        if block in self._waiting:
            del self._waiting[block]
            block.shared = False
            self.active -= block.size
            block.state = INACTIVE
            block.arena.put(block)

    def empty_cache(self, pool: tuple[int, int] = DEFAULT_POOL) -> None:
        """Wait for all streams and release free segments and pages.

        Covers the default pool and all released private pools; with `pool`, only that one.
        """
        self.supply.empty(pool)

    def reset_peaks(self) -> None:
        self.peak_active = self.active
        self._device.peak_reserved = self.reserved

    def heap(self) -> Heap:
        heads = sorted(self.supply.heads, key=lambda head: head.address)
        segments = [segment for head in heads for segment in segments_of(head)]
        return Heap(tuple(segments), self.settings)

    def totals(self, small: bool) -> Totals:
        """Return the sums of the small or large pools, including private ones, as torch's statistics do."""
        return add_up(self.supply.heads, small)

    def private_reserved(self) -> int:
        """Return the bytes that CUDA graphs and MemPools hold."""
        return sum(pair.reserved for pool, pair in self._pools.items() if pool != DEFAULT_POOL)

    def _activate(self, block: Block, size: int, request: int) -> None:
        """Allocate the block, cut to `size` bytes if its pool splits blocks."""
        pool = block.arena.pool
        if block.size - size > pool.tail and size < pool.splits_below:
            block.arena.add(block.split(size))
        block.state = ALLOCATED
        block.requested = request
        self.active += block.size
        self.peak_active = max(self.active, self.peak_active)

    def _take_over(self, block: Block) -> None:
        state = block.state
        self._activate(block, block.size, block.requested)
        if state is AWAITING:
            block.shared = True
            self.free(block)

    def _wait(self, pool: tuple[int, int]) -> None:
        for block in list(self._waiting):
            if pool in (DEFAULT_POOL, block.arena.pool.id):
                self.complete(block)


def adopt(segment: Segment, arena: Arena, device: Device, heads: Heads) -> list[Block]:
    """Return the segment's chained blocks in their recorded states; free ones are not in a free list yet."""
    if arena.pool.page is None:
        run = Block(segment.address, segment.size, device.ordering.key(segment.address, segment.size), arena)
        heads[run] = None
    else:
        run = _mapped(segment, arena, device, heads)
    device.take_over(arena, segment.address, segment.size)
    return list(_cut(run, segment))


def _mapped(segment: Segment, arena: Arena, device: Device, heads: Heads) -> Block:
    """Return the mapped run, cut out of the address space reserved around it."""
    room = next((block for block in arena.unmapped if _holds(block, segment)), None)
    if room is None:
        room = reserve(arena, device, heads, segment.address)
    arena.unmapped.remove(room)
    run = room
    if segment.address > room.address:
        run = room.split(segment.address - room.address)
        arena.unmapped.append(room)
    if run.size > segment.size:
        arena.unmapped.append(run.split(segment.size))
    return run


def _holds(unmapped: Block, segment: Segment) -> bool:
    return unmapped.address <= segment.address and segment.address + segment.size <= unmapped.address + unmapped.size


def _cut(run: Block, segment: Segment) -> Iterator[Block]:
    for block in segment.blocks():
        rest = run.split(block.size) if block.size < run.size else None
        run.state, run.requested = block.state, block.requested
        yield run
        if rest is not None:
            run = rest
