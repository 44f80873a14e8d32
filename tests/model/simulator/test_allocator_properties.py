"""What holds for the simulated allocator under every program and every setting."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import NamedTuple

from hypothesis import assume, given
from hypothesis import strategies as st

from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import AWAITING, INACTIVE, Heap, Segment
from gpufrag.model.settings import Settings
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.simulator.blocks import Block
from strategies import REQUESTS, allocator_settings

MIB = 1 << 20
GRAPH = (0, 1)


class Step(NamedTuple):
    """`pick` chooses among the live blocks for a free, among the waiting ones for a completion."""

    action: str
    size: int
    stream: int
    pool: tuple[int, int]
    pick: int


STEPS = st.builds(
    Step,
    st.sampled_from(["malloc"] * 5 + ["free"] * 4 + ["share", "complete", "empty_cache"]),
    REQUESTS,
    st.sampled_from([0, 0, 0, 7]),
    st.sampled_from([(0, 0)] * 4 + [GRAPH]),
    st.integers(0, 1000),
)
PROGRAMS = st.lists(STEPS, max_size=60)
SETTINGS = allocator_settings()
DRIVERS = st.builds(
    Driver,
    free=st.sampled_from([None, 150 * MIB, 180 * MIB, 1 << 39]),
    size=st.sampled_from([None, 1 << 40]),
    limit=st.sampled_from([None, 120 * MIB, 300 * MIB]),
) | st.just(Driver(free=180 * MIB, size=200 * MIB))  # here the address space of expandable segments ends, too


class Machine:
    """Runs steps, and remembers what is live."""

    def __init__(self, settings: Settings, driver: Driver) -> None:
        self.allocator = Allocator(settings, driver)
        self.live: list[Block] = []
        self.waiting: list[Block] = []

    def do(self, step: Step) -> None:
        if step.action == "malloc":
            block = self.allocator.malloc(step.size, step.stream, step.pool)
            self.live += [] if block is None else [block]
        elif step.action == "empty_cache":
            self.allocator.empty_cache()
        elif step.action == "complete" and self.waiting:
            self.allocator.complete(self.waiting.pop(step.pick % len(self.waiting)))
        elif self.live and step.action in ("free", "share"):
            block = self.live.pop(step.pick % len(self.live))
            if step.action == "share":
                self.allocator.record_stream(block, stream=99)
                self.waiting.append(block)
            self.allocator.free(block)


def run(program: list[Step], settings: Settings, driver: Driver) -> Iterator[Machine]:
    machine = Machine(settings, driver)
    for step in program:
        machine.do(step)
        yield machine


def bytes_in(heap: Heap, *states: str) -> int:
    return sum(b.size for s in heap.segments for b in s.blocks() if b.state in states or not states)


def mergeable(segment: Segment) -> bool:
    return any(before == after == INACTIVE for before, after in pairwise(segment.states))


@given(PROGRAMS, SETTINGS, DRIVERS)
def test_counters_agree_with_the_blocks(program: list[Step], settings: Settings, driver: Driver) -> None:
    for machine in run(program, settings, driver):
        allocator, heap = machine.allocator, machine.allocator.heap()
        totals = [allocator.totals(small) for small in (False, True)]
        assert sum(t.reserved for t in totals) == allocator.reserved == bytes_in(heap)
        assert sum(t.active for t in totals) == allocator.active == allocator.reserved - bytes_in(heap, INACTIVE)
        assert sum(t.active - t.allocated for t in totals) == bytes_in(heap, AWAITING)
        assert allocator.peak_active >= allocator.active
        assert allocator.peak_reserved >= allocator.reserved


@given(PROGRAMS, SETTINGS, DRIVERS)
def test_free_neighbours_are_always_merged(program: list[Step], settings: Settings, driver: Driver) -> None:
    for machine in run(program, settings, driver):
        assert not any(map(mergeable, machine.allocator.heap().segments))


@given(PROGRAMS, SETTINGS, DRIVERS)
def test_no_two_segments_share_an_address(program: list[Step], settings: Settings, driver: Driver) -> None:
    for machine in run(program, settings, driver):
        segments = machine.allocator.heap().segments
        assert all(before.address + before.size <= after.address for before, after in pairwise(segments))


@given(PROGRAMS, SETTINGS, DRIVERS)
def test_live_block_keeps_its_place_and_size(program: list[Step], settings: Settings, driver: Driver) -> None:
    places: dict[Block, tuple[int, int]] = {}
    for machine in run(program, settings, driver):
        places = {block: places.get(block, (block.address, block.size)) for block in machine.live}
        assert all((block.address, block.size) == place for block, place in places.items())
        assert all(block.size >= block.requested for block in machine.live)


@given(PROGRAMS, SETTINGS, DRIVERS)
def test_driver_and_limit_are_respected(program: list[Step], settings: Settings, driver: Driver) -> None:
    page = settings.page_size(small=False) if settings.expandable_segments else 0  # a last page may pass the limit
    for machine in run(program, settings, driver):
        assert driver.free is None or machine.allocator.reserved <= driver.free
        assert driver.limit is None or machine.allocator.reserved <= driver.limit + page


@given(PROGRAMS, SETTINGS, DRIVERS)
def test_same_program_ends_in_the_same_heap(program: list[Step], settings: Settings, driver: Driver) -> None:
    first, second = ([m.allocator.heap() for m in run(program, settings, driver)] for _ in range(2))
    assert first == second


@given(PROGRAMS, SETTINGS, DRIVERS)
def test_freeing_everything_leaves_nothing_reserved(program: list[Step], settings: Settings, driver: Driver) -> None:
    machine = Machine(settings, driver)
    machine.allocator.add_pool(GRAPH)
    for step in program:
        machine.do(step)
    for block in machine.live:
        machine.allocator.free(block)
    machine.allocator.release_pool(GRAPH)
    machine.allocator.empty_cache()
    assert machine.allocator.heap().segments == ()
    assert (machine.allocator.reserved, machine.allocator.active) == (0, 0)


@given(PROGRAMS, SETTINGS, DRIVERS, st.sampled_from([0, 7]))
def test_largest_allocatable_succeeds_and_more_fails(
    program: list[Step], settings: Settings, driver: Driver, stream: int
) -> None:
    """Two models that share no code: `reach` reads the answer off a heap, the simulator tries."""
    ends = [Machine(settings, driver) for _ in range(2)]
    for machine, step in product(ends, program):
        machine.do(step)
    first, second = (machine.allocator for machine in ends)
    largest = measure(first.heap(), first.driver, stream).largest_allocatable
    assume(largest is not None)
    assert largest == 0 or first.malloc(largest, stream) is not None
    assert second.malloc(largest + 512, stream) is None


@given(PROGRAMS, SETTINGS)
def test_request_fails_only_under_a_bound(program: list[Step], settings: Settings) -> None:
    for machine in run(program, settings, Driver()):
        assert machine.allocator.counters.ooms == 0
