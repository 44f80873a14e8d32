"""Torch's native CUDA caching allocator, simulated block for block.

It follows torch 2.11: of equal free blocks the one at the lowest address is taken (later versions put the oldest
segment first). What is not decided by the requests is an argument: the driver's free memory, the addresses of
segments, and when the streams have finished with a block.
"""

from __future__ import annotations

from collections.abc import Callable

from . import expandable, release
from .addresses import AddressSpace
from .adopt import adopt
from .blocks import Arena, Block, PoolPair, Totals, add_up, segments_of
from .device import Counters, Device, limited
from .events import Event
from .heap import ALLOCATED, AWAITING, DEFAULT_POOL, INACTIVE, Heap, Segment
from .reach import Driver
from .settings import MIN_BLOCK, SMALL_REQUEST, Settings


class Allocator:
    """One device's allocator: malloc and free move blocks, `heap` and `totals` tell where it stands.

    `driver` is the driver's reading before the first request: its free bytes (None: as many as are asked for),
    its size (which bounds the address space of an expandable segment), and the process's limit. `observe` is
    told of every segment that comes and goes.
    """

    def __init__(
        self,
        settings: Settings = Settings(),
        driver: Driver = Driver(),
        addresses: AddressSpace | None = None,
        observe: Callable[[Event], None] | None = None,
    ) -> None:
        self.settings = settings
        self.capturing = False
        """Whether a CUDA graph is being captured: then nothing is given back to the driver."""
        self.active = 0
        self.peak_active = 0
        self._device = Device(limited(driver, settings), addresses or AddressSpace(), observe)
        self._pools: dict[tuple[int, int], PoolPair] = {}
        self._heads: release.Heads = {}
        self._waiting: dict[Block, None] = {}
        self._round = settings.round if max(settings.roundup_power2_divisions) > 1 else _round_plainly
        self._collects = settings.garbage_collection_threshold > 0 and self._device.limit is not None
        self._takes_first = settings.max_split_size is None and not (settings.expandable_segments or self._collects)
        self.add_pool(DEFAULT_POOL)

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
        """The driver's reading now."""
        return self._device.driver

    def add_pool(
        self, pool: tuple[int, int], *, plain: bool = False, whole: bool = False, on_oom: bool = False
    ) -> PoolPair:
        """Makes a private pool; malloc makes one without options by itself.

        The options are those of a MemPool: `plain` is an allocator of its own (no expandable segments), `whole`
        is no_split, `on_oom` is use_on_oom.
        """
        grows = self.settings.expandable_segments and not plain
        pair = self._pools[pool] = PoolPair(self.settings, pool, grows, whole, on_oom)
        return pair

    def release_pool(self, pool: tuple[int, int]) -> None:
        """Its graph or MemPool is gone: from now on its free segments go with a flush."""
        self._pools[pool].released = True

    def adopt(self, segment: Segment) -> list[Block]:
        """Takes over a recorded segment; its blocks. Segments come in the order of their addresses."""
        pair = self._pools.get(segment.pool) or self.add_pool(segment.pool)
        arena = (pair.small if segment.small else pair.large).arena(segment.stream)
        blocks = adopt(segment, arena, self._device, self._heads)
        for block in blocks:
            if block.state is INACTIVE:
                arena.add(block)
            else:
                self._take_over(block)
        return blocks

    def malloc(self, request: int, stream: int = 0, pool: tuple[int, int] = DEFAULT_POOL) -> Block | None:
        """The block that serves a request of `request` bytes; None is an out-of-memory error."""
        size = self._round(request)
        pair = self._pools.get(pool) or self.add_pool(pool)
        half = pair.small if size <= SMALL_REQUEST else pair.large
        arena = half.arenas.get(stream) or half.arena(stream)
        block = arena.free.take(size) if self._takes_first else self._best_fit(arena, size)
        if block is None:
            block = self._from_driver(arena, size)
            if block is None:
                self._device.counters.ooms += 1
                return None
            arena = block.arena
        if block.size - size > arena.pool.tail and size < arena.pool.splits_below:
            arena.add(block.split(size))
        self._activate(block, request)
        return block

    def free(self, block: Block) -> None:
        """Raises ValueError for a block that is not allocated."""
        if block.state is not ALLOCATED:
            raise ValueError(f"the block at {block.address:#x} is {block.state}, not allocated")
        if block.shared:
            block.state = AWAITING
            block.arena.waiting += block.size
            self._waiting[block] = None
        else:
            self._retire(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """Another stream uses the block: after its free it waits until `complete`."""
        block.shared = block.shared or stream != block.arena.stream

    def complete(self, block: Block) -> None:
        """The streams have finished with a freed block. Nothing happens where a flush has waited for it already."""
        if block in self._waiting:
            del self._waiting[block]
            block.arena.waiting -= block.size
            self._retire(block)

    def empty_cache(self) -> None:
        """Waits for all streams and gives every free segment and page back to the driver."""
        self._device.counters.stream_syncs += 1
        for block in list(self._waiting):
            self.complete(block)
        default = self._pools[DEFAULT_POOL]
        freeable = [pair for pair in self._pools.values() if pair.released]
        halves = [default.large, default.small, *(half for pair in freeable for half in (pair.small, pair.large))]
        release.flush(halves, self._device, self._heads)

    def heap(self) -> Heap:
        heads = sorted(self._heads, key=lambda head: head.address)
        segments = [segment for head in heads for segment in segments_of(head)]
        return Heap(tuple(segments), self.settings)

    def totals(self, small: bool) -> Totals:
        """Sums of the small or the large pools, private ones included, as torch's statistics have them."""
        return add_up([pair.small if small else pair.large for pair in self._pools.values()])

    def private_reserved(self) -> int:
        """Bytes held by CUDA graphs and MemPools."""
        return sum(pair.reserved for pool, pair in self._pools.items() if pool != DEFAULT_POOL)

    def _activate(self, block: Block, request: int) -> None:
        arena, size = block.arena, block.size
        block.state = ALLOCATED
        block.requested = request
        block.shared = False
        arena.active += size
        arena.requested += request
        self.active = active = self.active + size
        if active > self.peak_active:
            self.peak_active = active

    def _take_over(self, block: Block) -> None:
        state, requested = block.state, block.requested
        self._activate(block, requested)
        if state is AWAITING:
            block.shared = True
            self.free(block)

    def _retire(self, block: Block) -> None:
        arena, size = block.arena, block.size
        arena.active -= size
        arena.requested -= block.requested
        self.active -= size
        block.state = INACTIVE
        arena.put(block)

    def _best_fit(self, arena: Arena, size: int) -> Block | None:
        """The cached block for a request, out of the free list; max_split_size forbids all but near sizes."""
        if self._collects:
            arena.pool.age += 1
        block = expandable.best_fit(arena, size)
        if block is None:
            return None
        least = self.settings.max_split_size
        if least is not None:
            if size < least <= block.size:
                return None
            if size >= least and block.size >= size + self.settings.max_non_split_rounding:
                return None
        arena.free.remove(block)
        return block

    def _from_driver(self, arena: Arena, size: int) -> Block | None:
        """New memory for a request, at need after cached memory was given back: torch's chain of attempts."""
        settings = self.settings
        if self._collects:
            default = self._pools[DEFAULT_POOL].large
            release.collect(default, settings.garbage_collection_threshold, self._device, self._heads)
        block = self._new(arena, size) or self._overflow(arena, size)
        least = settings.max_split_size
        if block is None and least and release.release_oversize(arena, size, least, self._device, self._heads):
            block = self._new(arena, size)
        if block is None and self._may_flush(arena):
            self.empty_cache()
            self._device.counters.alloc_retries += 1
            block = self._new(arena, size)
        return block

    def _may_flush(self, arena: Arena) -> bool:
        """Not in a capture, which is where graphs allocate; before torch 2.13 not for a MemPool either."""
        return not self.capturing and arena.pool.id == DEFAULT_POOL

    def _overflow(self, arena: Arena, size: int) -> Block | None:
        """A cached block of a MemPool that lends to the default pool. Torch passes its expandable blocks over."""
        if arena.pool.id != DEFAULT_POOL:
            return None
        lenders = [pair.small if arena.pool.small else pair.large for pair in self._pools.values() if pair.on_oom]
        for pool in lenders:
            block = self._best_fit(pool.arena(arena.stream), size) if pool.page is None else None
            if block is not None:
                return block
        return None

    def _new(self, arena: Arena, size: int) -> Block | None:
        """One attempt at new memory."""
        request = self.settings.segment_size(size)
        if not self._device.allows(request):
            return None
        if arena.pool.page is not None:
            return expandable.grow(arena, size, self._device, self._heads)
        if not self._device.holds(request):
            return None
        block = Block(self._device.addresses.take(request), request, arena)
        self._heads[block] = None
        self._device.give(arena, block.address, request)
        return block


def _round_plainly(request: int) -> int:
    """Settings.round where roundup_power2_divisions is off: on the path of every request, so it is kept short."""
    return (request + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK or MIN_BLOCK
