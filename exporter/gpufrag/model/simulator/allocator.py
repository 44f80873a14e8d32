"""Torch's native CUDA caching allocator, simulated block for block.

It follows torch 2.11: of equal free blocks the one at the lowest address is taken (later versions put the oldest
segment first). What is not decided by the requests is an argument: the driver's free memory, the addresses of
segments, and when the streams have finished with a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..allocatable import Driver, limited
from ..heap import ALLOCATED, AWAITING, DEFAULT_POOL, INACTIVE, Heap, Segment
from ..settings import MIN_BLOCK, SMALL_REQUEST, Settings
from ..trace.events import Event
from .addresses import AddressSpace
from .blocks import Arena, Block, Ordering, PoolPair, Totals, add_up, segments_of
from .device import Counters, Device
from .expandable import reserve
from .supply import Foreseen, Heads, Supply


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
        self.active = 0
        self.peak_active = 0
        self._device = Device(
            limited(driver, settings), addresses or AddressSpace(), Ordering(settings.tie_break), observe
        )
        self._supply = supply = Supply(settings, self._device, self._wait)
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
        """The driver's reading now."""
        return self._device.driver

    @property
    def capacity(self) -> int | None:
        """What the driver has for this process, used and free, in bytes; None is unknown."""
        return self._device.capacity

    @capacity.setter
    def capacity(self, capacity: int | None) -> None:
        self._device.capacity = capacity

    @property
    def waits(self) -> bool:
        """Whether freed blocks wait for a stream: a flush ends that."""
        return bool(self._waiting)

    def flush_sizes(self) -> dict[tuple[int, int], list[int]]:
        """The sizes of what empty_cache would give back, by pool; without blocks that wait for a stream."""
        return self._supply.flush_sizes()

    @property
    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured: then nothing is given back to the driver."""
        return self._supply.capturing

    @capturing.setter
    def capturing(self, capturing: bool) -> None:
        self._supply.capturing = capturing

    def add_pool(
        self, pool: tuple[int, int], *, plain: bool = False, whole: bool = False, on_oom: bool = False
    ) -> PoolPair:
        """Makes a private pool; malloc makes one without options by itself.

        The options are those of a MemPool: `plain` is an allocator of its own (no expandable segments), `whole`
        is no_split, `on_oom` is use_on_oom.
        """
        return self._supply.add_pool(pool, plain=plain, whole=whole, on_oom=on_oom)

    def release_pool(self, pool: tuple[int, int]) -> None:
        """Its graph or MemPool is gone: from now on its free segments go with a flush."""
        self._pools[pool].released = True

    def adopt(self, segment: Segment) -> list[Block]:
        """Takes over a recorded segment; its blocks. Segments come in the order of their addresses."""
        pair = self._pools.get(segment.pool) or self.add_pool(segment.pool)
        arena = (pair.small if segment.small else pair.large).arena(segment.stream)
        blocks = adopt(segment, arena, self._device, self._supply.heads)
        for block in blocks:
            if block.state is INACTIVE:
                arena.add(block)
            else:
                self._take_over(block)
        return blocks

    def malloc(self, request: int, stream: int = 0, pool: tuple[int, int] = DEFAULT_POOL) -> Block | None:
        """The block that serves a request of `request` bytes; None is an out-of-memory error."""
        if self._rounds_plainly:
            size = (request + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK or MIN_BLOCK
        else:
            size = self.settings.round(request)
        pair = self._pools.get(pool) or self.add_pool(pool)
        half = pair.small if size <= SMALL_REQUEST else pair.large
        arena = half.arenas.get(stream) or half.arena(stream)
        block = arena.free.take(size) if self._takes_first else self._supply.best_fit(arena, size)
        if block is None:
            block = self._supply.obtain(arena, size)
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
        """The last attempt alone, after `released` are given back: flush and ask the driver, ignore the cache."""
        arena, size = self._supply.arena(request, stream, pool)
        block = self._supply.after_flush(arena, size, released)
        if block is not None:
            self._activate(block, size, request)
        return block

    def foresee(self, request: int, stream: int, pool: tuple[int, int]) -> Foreseen | None:
        """What malloc would give back to the driver for a request; None where cached memory serves it."""
        return self._supply.foresee(*self._supply.arena(request, stream, pool))

    def free(self, block: Block) -> None:
        """Raises ValueError for a block that is not allocated."""
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
        """Another stream uses the block: after its free it waits until `complete`."""
        block.shared = block.shared or stream != block.arena.stream

    def complete(self, block: Block) -> None:
        """The streams have finished with a freed block. Nothing happens where a flush has waited for it already."""
        if block in self._waiting:
            del self._waiting[block]
            block.shared = False
            self.active -= block.size
            block.state = INACTIVE
            block.arena.put(block)

    def empty_cache(self, pool: tuple[int, int] = DEFAULT_POOL) -> None:
        """Waits for all streams and gives free segments and pages back to the driver.

        Those of the default pool and of all private ones that are released; with `pool`, of that one alone.
        """
        self._supply.empty(pool)

    def heap(self) -> Heap:
        heads = sorted(self._supply.heads, key=lambda head: head.address)
        segments = [segment for head in heads for segment in segments_of(head)]
        return Heap(tuple(segments), self.settings)

    def totals(self, small: bool) -> Totals:
        """Sums of the small or the large pools, private ones included, as torch's statistics have them."""
        return add_up(self._supply.heads, small)

    def private_reserved(self) -> int:
        """Bytes held by CUDA graphs and MemPools."""
        return sum(pair.reserved for pool, pair in self._pools.items() if pool != DEFAULT_POOL)

    def _activate(self, block: Block, size: int, request: int) -> None:
        """Hand out a block, cut to `size` bytes where its pool cuts."""
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
    """The segment's blocks, chained, in the states that were recorded; the free ones are in no free list yet."""
    if arena.pool.page is None:
        run = Block(segment.address, segment.size, device.ordering.of_new_segment(segment.address), arena)
        heads[run] = None
    else:
        run = _mapped(segment, arena, device, heads)
    device.take_over(arena, segment.address, segment.size)
    return list(_cut(run, segment))


def _mapped(segment: Segment, arena: Arena, device: Device, heads: Heads) -> Block:
    """The mapped run, cut out of the address space that is reserved around it."""
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
