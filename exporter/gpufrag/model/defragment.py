"""Which live blocks to move so that free memory becomes one piece again, and what the heap is afterwards.

A move copies a block out of its segment, frees it, returns the empty segment to the driver and allocates the block
again. The plan is replayed on the simulated allocator, so the heap after the move is predicted block by block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from ..errors import BadInput
from .allocatable import Driver
from .fragmentation import Fragmentation, measure
from .heap import ALLOCATED, AWAITING, DEFAULT_POOL, INACTIVE, Block, Heap, Segment
from .settings import MIB, SMALL_REQUEST
from .simulator.allocator import Allocator
from .simulator.blocks import Block as SimulatedBlock

MAX_ROUNDS = 64
HOST_ROUND = 64 * MIB
"""Pinning host memory costs more than the copies, so a round through the host is small."""


@dataclass(frozen=True)
class Move:
    """One live block that leaves its segment. `requested` and `size` are bytes."""

    address: int
    size: int
    requested: int
    stream: int


@dataclass(frozen=True)
class Round:
    """Moves that are copied out together, in the order of their new allocation."""

    moves: tuple[Move, ...]
    on_device: bool
    """Whether the copies are made on the device, else in host memory."""

    @property
    def bytes(self) -> int:
        """Bytes to move."""
        return sum(move.size for move in self.moves)


@dataclass(frozen=True)
class Plan:
    """The rounds to carry out, and the figures before and after them.

    pinned: live blocks in segments with stranded bytes that must stay, in bytes.
    """

    rounds: tuple[Round, ...]
    pinned: int
    before: Fragmentation
    after: Fragmentation

    @property
    def bytes(self) -> int:
        """Bytes to move."""
        return sum(one.bytes for one in self.rounds)


@dataclass(frozen=True)
class Target:
    """When a plan moves enough: at this ratio, or when one request of this many bytes fits. None: move all it can."""

    ratio: float | None = None
    bytes: int | None = None

    def is_reached(self, measured: Fragmentation) -> bool:
        if self.ratio is None and self.bytes is None:
            return False
        enough = self.ratio is None or (measured.ratio is not None and measured.ratio <= self.ratio)
        largest = measured.largest_allocatable
        return enough and (self.bytes is None or (largest is not None and largest >= self.bytes))


def plan(heap: Heap, driver: Driver, movable: Collection[int], host_limit: int, target: Target = Target()) -> Plan:
    """Return the plan that empties the cheapest segments first until the target is reached, or all it can.

    heap: one device, with nothing waiting for a stream (synchronize first). driver: its reading now.
    movable: addresses of blocks that may move. host_limit: bytes of host memory that one round may use: for its
    copies if the device has no room, and for getting them back if its move fails.
    Raises BadInput for a heap of several devices or with blocks that wait for a stream.
    """
    if len(heap.devices) > 1:
        raise BadInput(f"this heap spans devices {heap.devices}; plan one device at a time")
    if any(AWAITING in segment.states for segment in heap.segments):
        raise BadInput("blocks still wait for a stream; synchronize the device before the snapshot")
    before = reached = measure(heap, driver)
    simulation = _Simulation(heap, driver, movable)
    rounds: list[Round] = []
    while len(rounds) < MAX_ROUNDS and not target.is_reached(reached):
        units = simulation.candidates()
        on_device = True
        moves = _choose(units, min(host_limit, simulation.fresh_room()), reached, target)
        if not moves:  # a few segments through the host make room on the device
            on_device = False
            moves = _choose(units, min(host_limit, HOST_ROUND), reached, target) or _choose(
                units[:1], host_limit, reached, target
            )
        done = simulation.carry_out(moves, on_device) if moves else None
        if done is None:
            break
        measured = simulation.measure()
        if measured.stranded >= reached.stranded:
            break
        rounds.append(Round(done, on_device))
        reached = measured
    if (reached.largest_allocatable or 0) <= (before.largest_allocatable or 0):
        rounds, reached = [], before
    return Plan(tuple(rounds), _pinned_bytes(heap, movable), before, reached)


def _pinned_bytes(heap: Heap, movable: Collection[int]) -> int:
    return sum(
        block.size
        for segment in filter(_is_fragmented, heap.segments)
        for block in segment.blocks()
        if block.state is ALLOCATED and block.address not in movable
    )


def _choose(units: Sequence[_Unit], room: int, now: Fragmentation, target: Target) -> tuple[Move, ...]:
    """Return the moves of one round: the cheapest units whose copies fit, until they should reach the target."""
    moves: list[Move] = []
    largest = now.largest_allocatable or 0
    for unit in units:
        copies = sum(map(_staged, unit.moves))
        if copies <= room:
            moves += unit.moves
            room -= copies
            largest += unit.gain
            if target.is_reached(replace(now, largest_allocatable=largest)):
                break
    # large blocks first: small ones then fill what is left in their segments
    return tuple(sorted(moves, key=lambda move: (-move.size, move.address)))


@dataclass(frozen=True)
class _Unit:
    """Blocks that must all move to empty one segment, or one range of pages of an expandable segment."""

    moves: tuple[Move, ...]
    gain: int  # free bytes that become returnable

    @property
    def cost(self) -> float:
        return sum(move.size for move in self.moves) / self.gain


def _is_fragmented(segment: Segment) -> bool:
    return not segment.private and INACTIVE in segment.states and ALLOCATED in segment.states


def _units(heap: Heap, movable: Collection[int]) -> Iterator[_Unit]:
    for segment in filter(_is_fragmented, heap.segments):
        live = [block for block in segment.blocks() if block.state is ALLOCATED]
        if segment.expandable:
            yield from _page_units(segment, live, movable, heap.settings.page_size(segment.small))
        elif all(block.address in movable for block in live):
            moves = tuple(_move(block, segment) for block in live)
            yield _Unit(moves, segment.size - sum(move.size for move in moves))


def _page_units(segment: Segment, live: Sequence[Block], movable: Collection[int], page: int) -> Iterator[_Unit]:
    """Yield the partly used pages of a mapped range, each with the blocks that overlap it.

    Pages that share a block form one unit: they become free together.
    """
    unit: list[Block] = []
    start = end = 0  # the unit's pages, as offsets into the segment
    for block in [*live, None]:
        first = last = 0
        if block is not None:
            first = (block.address - segment.address) // page * page
            last = -(-(block.address + block.size - segment.address) // page) * page
        if unit and (block is None or first >= end):
            gain = min(end, segment.size) - start - sum(b.size for b in unit)
            if gain > 0 and all(b.address in movable for b in unit):
                yield _Unit(tuple(_move(b, segment) for b in unit), gain)
            unit = []
        if block is not None:
            start, end = (start, max(end, last)) if unit else (first, last)
            unit.append(block)


def _move(block: Block, segment: Segment) -> Move:
    return Move(block.address, block.size, block.requested, segment.stream)


def _staged(move: Move) -> int:
    return -(-move.requested // 512) * 512


class _Simulation:
    """The heap while the plan is carried out. Moves keep the address that their block has in the real heap."""

    def __init__(self, heap: Heap, driver: Driver, movable: Collection[int]) -> None:
        free = None if driver.free is None else driver.free + sum(segment.size for segment in heap.segments)
        self._allocator = Allocator(heap.settings, replace(driver, free=free))
        self._blocks: dict[int, SimulatedBlock] = {}  # by real address
        self._real: dict[int, int] = {}  # real address by simulated address
        for segment in heap.segments:
            for block in self._allocator.adopt(segment):
                if block.state is ALLOCATED and block.address in movable:
                    self._blocks[block.address] = block
                    self._real[block.address] = block.address
        self._next_pool = max((segment.pool[1] for segment in heap.segments), default=0)
        self._allocator.empty_cache()  # so does the real move, before its first copy

    def measure(self) -> Fragmentation:
        return measure(self._allocator.heap(), self._allocator.driver)

    def fresh_room(self) -> int:
        """Bytes of one new segment, on top of all that are reserved."""
        device = self._allocator.driver
        reserved = self._allocator.reserved
        rooms = [] if device.free is None else [Driver.usable(device.free)]
        rooms += [] if device.limit is None else [device.limit - reserved]
        page = self._allocator.settings.large_segment_size
        return max(0, min(rooms, default=0)) // page * page

    def _staging_pool(self) -> tuple[int, int]:
        """Return a new pool for plain segments, so that no copy is placed in a segment that the plan empties."""
        if self._allocator.settings.expandable_segments:
            return DEFAULT_POOL
        self._next_pool += 1
        return 0, self._next_pool

    def candidates(self) -> list[_Unit]:
        """Return the units of the heap as it is now, the cheapest first."""
        return sorted(_units(self._allocator.heap(), self._real), key=lambda unit: unit.cost)

    def carry_out(self, moves: Sequence[Move], on_device: bool) -> tuple[Move, ...] | None:
        """Move blocks, given by their simulated addresses; return the moves with the real ones.

        None if an allocation fails; the simulation is of no use afterwards.
        """
        copies = None
        pool = self._staging_pool()
        if on_device:
            staging = max(sum(map(_staged, moves)), SMALL_REQUEST + 1)
            copies = self._allocator.malloc(staging, moves[0].stream, pool)
            if copies is None:
                return None
        names = [self._real.pop(move.address) for move in moves]
        for name in names:
            self._allocator.free(self._blocks[name])
        self._allocator.empty_cache()
        for name, move in zip(names, moves):
            block = self._allocator.malloc(move.requested, move.stream)
            if block is None:
                return None
            self._blocks[name], self._real[block.address] = block, name
        if copies is not None:
            self._allocator.free(copies)
            if pool != DEFAULT_POOL:
                self._allocator.release_pool(pool)
        self._allocator.empty_cache()
        return tuple(replace(move, address=name) for name, move in zip(names, moves))
