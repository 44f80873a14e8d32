"""Replays a recorded run under another allocator setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import NamedTuple

from ..allocatable import Driver, limited
from ..anchor import SMALLEST, settings_obstacle, sizes_to_try
from ..fragmentation import measure
from ..heap import DEFAULT_POOL, INACTIVE, Heap
from ..settings import SEGMENT_GRID, SMALL_REQUEST, Settings
from ..simulator.addresses import AddressSpace
from ..simulator.allocator import Allocator
from ..simulator.blocks import Block
from .events import GROWS, OOM, SHRINKS, Event
from .history import Beginning, rewind
from .no_split import unsplit_pools
from .pools import Place, SegmentPool, infer_pools
from .program import AWAIT, BORROW, CAPACITY, COMPLETE, FAIL, FAIL_IN_CAPTURE, FREE, MALLOC, Program, Replay
from .reading import places, read_program

STRETCHES = 64
"""The number of equal stretches of a run; each is measured once, where most memory is requested."""

Progress = Callable[[int, int], None]
"""Called with (operations done, all operations); in a search, with (tries done, all tries)."""


class Start(NamedTuple):
    """How a replay begins.

    packed: with only the older blocks, packed. Otherwise the recorded settings begin with the recorded heap; others
    are always packed, so that their outcomes are comparable. anchor: bytes that are reserved in one piece first, by the
    rules of the agent's anchor; 0 is none. empties_cache: the cache is released first, as by empty_cache.
    """

    packed: bool = True
    anchor: int = 0
    empties_cache: bool = False


PACKED, OWN_HEAP = Start(), Start(packed=False)
EMPTIED = Start(packed=False, empties_cache=True)


@dataclass(frozen=True)
class Run:
    """A recorded run of one device: the heap when its trace began, the program, and the recorded end.

    The program's first `older` allocations predate the trace. Their order is unknown, so they are in address order.
    `driver` is the driver's reading before the process's first request.
    """

    program: Program
    beginning: Heap
    end: Heap
    older: int
    addresses: tuple[tuple[int, int], ...]
    """(address, size) of the segments created during the recording; they break ties between equal blocks."""
    driver: Driver
    recorded_limit: int | None
    unsplit: frozenset[tuple[int, int]] = frozenset()
    """The MemPools whose blocks are not split."""
    unclear_segments: int = 0
    """Segments of which the trace does not show whether they belong to the default pool."""
    pools: Mapping[Place, SegmentPool] = field(default_factory=dict)
    """Of the plain segments, if the trace has no pools."""

    @property
    def inferred_pools(self) -> int:
        """Return the number of segments whose pool is inferred."""
        return sum(segment.is_inferred for segment in self.pools.values())

    @cached_property
    def moments(self) -> list[int]:
        """For each stretch, the number of operations after which most bytes are requested."""
        return _moments(self.program)

    @property
    def complete(self) -> bool:
        """Whether the trace begins with the process, with nothing reserved before."""
        return not self.beginning.segments

    def prepare(self) -> None:
        """Compute what all replays share, before processes inherit it."""
        self.moments, self.program.compiled  # noqa: B018

    def limit_under(self, settings: Settings, limit: int | None) -> int | None:
        """Return a replay's limit: `limit`, else per_process_memory_fraction of the settings."""
        return limited(replace(self.driver, limit=limit), settings).limit


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run under one setting, in bytes. None: unknown without the driver's figures."""

    peak_reserved: int
    peak_active: int
    stranded_at_peak: int
    """At the measured moment with most active memory."""
    failed: int
    """Requests that succeeded in the recording and run out of memory here."""
    ooms: int
    alloc_retries: int
    device_allocs: int
    worst_largest_allocatable: int | None
    """The smallest largest_allocatable of the measured moments."""
    same_end: bool
    """Whether the final heap equals the recorded one, block for block (segment addresses aside)."""

    @property
    def peak_fragmentation(self) -> float:
        """1 - peak active / peak reserved."""
        return 1 - self.peak_active / self.peak_reserved if self.peak_reserved else 0.0


def read_run(
    events: Sequence[Event],
    end: Heap,
    driver: Driver,
    recorded_limit: int | None = None,
    tried: Mapping[Place, tuple[int, int]] = MappingProxyType({}),
) -> Run:
    """Return the run behind a trace that ends in the one-device heap `end`.

    recorded_limit: the limit during the recording; it distinguishes a flush from an empty_cache. tried: see
    infer_pools. Raises BadInput if trace and heap do not fit.
    """
    beginning, unclear = rewind(events, end), 0
    pools: Mapping[Place, SegmentPool] = {}
    recorded = tuple(places(events, end.settings, driver.size, beginning.heap.segments))
    if recorded_limit is None:
        recorded_limit = limited(driver, end.settings).limit or _limit_behind(beginning, end)
    may_have_pools = end.settings.torch < (2, 12) or any(segment.private for segment in end.segments)
    if may_have_pools and all(event.pool == DEFAULT_POOL for event in events):
        beginning, unclear, pools = infer_pools(beginning, end, replace(driver, limit=recorded_limit), tried)
    unsplit = unsplit_pools(beginning.events, end, beginning.heap.segments)
    twin = Allocator(end.settings, replace(driver, limit=recorded_limit), AddressSpace(recorded))
    made = _adopt(twin, beginning.heap, unsplit)
    program = read_program([*beginning.allocations, *beginning.events], allocator=twin, made=made)
    older = len(beginning.allocations)
    return Run(program, beginning.heap, end, older, recorded, driver, recorded_limit, unsplit, unclear, pools)


def _limit_behind(beginning: Beginning, end: Heap) -> int | None:
    """Return the limit that explains requests that failed although the driver had the memory, else None.

    It is below what the first such request would have reserved, and at least what the process ever reserved.
    """
    reserved = sum(segment.size for segment in beginning.heap.segments)
    most, least = reserved, None
    for event in beginning.events:
        if event.action in GROWS:
            reserved += event.size
            most = max(most, reserved)
        elif event.action in SHRINKS:
            reserved -= event.size
        elif event.action == OOM and event.address is not None:
            wanted = end.settings.segment_size(event.size)
            page = end.settings.page_size(event.size <= SMALL_REQUEST) if end.settings.expandable_segments else 1
            if -(-wanted // page) * page <= Driver.usable(event.address):
                least = min(reserved + wanted, least or reserved + wanted)
    if least is None or least <= most:
        return None
    return max(most, (least - 1) // SEGMENT_GRID * SEGMENT_GRID)


def ends_as_recorded(run: Run) -> bool:
    """Return whether the replay under the recorded settings ends in the recorded heap."""
    replay = begin(run, run.end.settings, run.recorded_limit)
    replay.run()
    return shape(replay.allocator.heap()) == shape(run.end)


def play(
    run: Run, settings: Settings, limit: int | None, progress: Progress | None = None, start: Start = OWN_HEAP
) -> Outcome:
    """Replay under `settings` and `limit` (bytes, None is none)."""
    replay = begin(run, settings, limit, start)
    allocator = replay.allocator
    worst: int | None = None
    most_active = stranded = 0
    for moment in run.moments:
        replay.run(until=moment)
        found = measure(allocator.heap(), allocator.driver)
        reach = found.largest_allocatable
        worst = reach if worst is None or (reach is not None and reach < worst) else worst
        if allocator.active >= most_active:
            most_active, stranded = allocator.active, found.stranded
        if progress is not None:
            progress(moment, len(run.program.operations))
    replay.run()
    counters = allocator.counters
    return Outcome(
        peak_reserved=allocator.peak_reserved,
        peak_active=allocator.peak_active,
        stranded_at_peak=stranded,
        failed=replay.failed,
        ooms=counters.ooms,
        alloc_retries=counters.alloc_retries,
        device_allocs=counters.device_allocs,
        worst_largest_allocatable=worst,
        same_end=shape(allocator.heap()) == shape(run.end),
    )


def smallest_limit(
    run: Run,
    settings: Settings,
    progress: Progress | None = None,
    known: int | None = None,
    start: Start = PACKED,
    below: int | None = None,
) -> int | None:
    """Return a limit, to 2 MiB, that serves every request of the run and fails 2 MiB lower; by bisection.

    Returns None if twice the peak without a limit does not suffice. A larger limit can fail where a smaller one
    succeeds, so several such limits may exist. If the first one found is above `known`, a limit that served the run,
    the search continues below `known`. below: search only below this limit; None if the next smaller one fails. The run
    begins as in `play`, but a limit below the memory reserved then first releases what is cached.
    """
    if run.driver.free is None:  # the trace shows the device's free memory only when it was full
        run = on_any_device(run)
    search = _Search(run, settings, start)
    highest = -(-2 * search.enough // SEGMENT_GRID)
    found = search.bisect(highest if below is None else min(highest, below // SEGMENT_GRID - 1), progress)
    if known is not None and (found is None or known < found):
        found = search.bisect(known // SEGMENT_GRID, progress) or found
    return found


class Anchored(NamedTuple):
    """An anchor of `size` bytes, and the smallest limit with it."""

    size: int
    smallest_limit: int


def best_anchor(run: Run, settings: Settings) -> Anchored | None:
    """Return the tried anchor with which the run needs the least; None if no anchor is possible."""
    best: Anchored | None = None
    for size in possible_anchors(run, settings):
        limit = smallest_limit(run, settings, start=Start(anchor=size), below=best and best.smallest_limit)
        if limit is not None and limit >= size:  # below its size, the anchor is not reserved
            best = Anchored(size, limit)
    return best


def possible_anchors(run: Run, settings: Settings) -> list[int]:
    """Return the anchors to try, in bytes; none if the agent reserves none under these settings."""
    return [] if settings_obstacle(settings) else sizes_to_try(_least_active(run.program, settings))


def in_effect(run: Run, settings: Settings, limit: int | None, search: bool) -> Settings:
    """Return the settings without options that change nothing in this run; equal ones have the same outcome.

    search: whether the run is also replayed under smaller limits.
    """
    if not search and run.limit_under(settings, limit) is None:
        settings = replace(settings, garbage_collection_threshold=0.0)
    least = settings.max_split_size
    if least is None or settings.expandable_segments:
        return settings
    requests = {op.size for op in run.program.operations if op.kind in (MALLOC, BORROW, FAIL, FAIL_IN_CAPTURE)}
    segments = [segment.size for segment in run.beginning.segments]
    largest = max([*segments, *(settings.segment_size(settings.round(size)) for size in requests)], default=0)
    return replace(settings, max_split_size=None) if largest < least else settings


def on_any_device(run: Run) -> Run:
    """Return the run on a device with unlimited memory."""
    program = run.program
    if any(operation.kind == CAPACITY for operation in program.operations):
        kept = tuple(operation for operation in program.operations if operation.kind != CAPACITY)
        program = replace(program, operations=kept)
    return replace(run, driver=Driver(), program=program)


class _Search:
    """The search for the smallest limit of a run under one setting.

    too_little: below it a request must fail. enough: the peak without a limit. Most limits outside need no replay.
    """

    def __init__(self, run: Run, settings: Settings, start: Start) -> None:
        self._run, self._settings, self._start = run, settings, start
        unlimited = begin(run, settings, None, start)
        unlimited.run()
        self.enough = unlimited.allocator.peak_reserved
        self._fails = unlimited.failed > 0
        # a segment grows by less than the size that torch compares with the limit; garbage collection depends on it
        self._needs_replay = settings.expandable_segments or settings.garbage_collection_threshold > 0
        overshoot = settings.page_size(small=False) if settings.expandable_segments else 0
        self.too_little = _least_active(run.program, settings) - overshoot

    def bisect(self, high: int, progress: Progress | None) -> int | None:
        """Search below `high`, in units of the grid; return None if `high` does not suffice."""
        if not self._suffices(high * SEGMENT_GRID):
            return None
        low, tries = 0, high.bit_length()
        while high - low > 1:
            if progress is not None:
                progress(tries - (high - low).bit_length(), tries)
            middle = (low + high) // 2
            low, high = (low, middle) if self._suffices(middle * SEGMENT_GRID) else (middle, high)
        return high * SEGMENT_GRID

    def _suffices(self, limit: int) -> bool:
        if limit < self.too_little:
            return False
        if limit >= self.enough and not self._needs_replay:
            return not self._fails
        replay = begin_under(self._run, self._settings, limit, self._start)
        if replay is None:
            return False
        stride = max(1, len(self._run.program.operations) // STRETCHES)
        while not replay.done and not replay.failed:  # detects a limit that is too small early
            replay.run(until=replay.position + stride)
        return not replay.failed


def _least_active(program: Program, settings: Settings) -> int:
    """Return the most bytes that the program's live allocations take at once, wherever they are placed."""
    live = most = 0
    rounded = cache(settings.round)
    for kind, _, size, _, _ in program.operations:
        if kind in (MALLOC, BORROW):
            live += rounded(size)
            most = max(most, live)
        elif kind in (FREE, AWAIT):
            live -= rounded(size)
    return most


def begin(
    run: Run,
    settings: Settings,
    limit: int | None,
    start: Start = OWN_HEAP,
    observe: Callable[[Event], None] | None = None,
) -> Replay:
    """Return a replay at its start. `observe` is called when a segment is added or removed."""
    driver = replace(run.driver, limit=limit)
    settings = replace(settings, torch=run.end.settings.torch)
    allocator = Allocator(settings, driver, AddressSpace(run.addresses), observe)
    afresh = settings != run.end.settings or start.packed
    made = _adopt(allocator, Heap(()) if afresh else run.beginning, run.unsplit)
    if start.anchor:
        _reserve_anchor(allocator, start.anchor)
    if start.empties_cache:
        allocator.empty_cache()
        allocator.reset_peaks()
    return Replay(run.program, allocator, made)


def _reserve_anchor(allocator: Allocator, size: int) -> None:
    """Allocate and free the anchor, unless the agent would refuse to (gpufrag.agent.torch.anchor)."""
    settings, driver = allocator.settings, allocator.driver
    if size < SMALLEST or settings_obstacle(settings):
        return
    wanted = allocator.reserved + settings.segment_size(settings.round(size))
    if (driver.limit is None or wanted <= driver.limit) and (
        driver.free is None or wanted <= Driver.usable(driver.free)
    ):
        block = allocator.malloc(size)
        assert block is not None
        allocator.free(block)


def begin_under(run: Run, settings: Settings, limit: int, start: Start) -> Replay | None:
    """Return a replay at its start, after the release of cached memory if the heap exceeds the limit; None if it can't.

    See begin.
    """
    replay = begin(run, settings, limit, start)
    if replay.allocator.reserved > limit:
        replay.allocator.empty_cache()
    return None if replay.allocator.reserved > limit else replay


def _adopt(allocator: Allocator, beginning: Heap, unsplit: Iterable[tuple[int, int]]) -> list[Block]:
    """Load a recorded heap into the allocator; return the heap's live blocks."""
    for pool in unsplit:
        allocator.add_pool(pool, whole=True)
    blocks = [block for segment in beginning.segments for block in allocator.adopt(segment)]
    return [block for block in blocks if block.state is not INACTIVE]


def _moments(program: Program) -> list[int]:
    """Return for each stretch the number of operations after which most bytes are requested."""
    wanted = 0
    best: dict[int, tuple[int, int]] = {}
    stretch = max(1, -(-len(program.operations) // STRETCHES))
    for index, operation in enumerate(program.operations):
        if operation.kind in (MALLOC, BORROW):
            wanted += operation.size
        elif operation.kind in (FREE, COMPLETE):
            wanted -= operation.size
        best[index // stretch] = max(best.get(index // stretch, (-1, 0)), (wanted, index + 1))
    return [moment for _, moment in best.values()]


def shape(heap: Heap) -> list[tuple[object, ...]]:
    """Return what must match between two heaps apart from segment addresses: order within, sizes, states."""
    return sorted((s.small, s.pool, s.expandable, tuple(s.sizes), tuple(s.states)) for s in heap.segments)
