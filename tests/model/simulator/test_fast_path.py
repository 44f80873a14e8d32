"""The fast path does the same as Allocator.malloc and Allocator.free, down to the order of the free lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import DEFAULT_POOL
from gpufrag.model.settings import Settings
from gpufrag.model.simulator import blocks
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.trace.program import AWAIT, COMPLETE, EMPTY, FAIL, FREE, MALLOC, Operation, Program, Replay
from strategies import REQUESTS, allocator_settings

MIB = 1 << 20
STEPS = st.tuples(
    st.sampled_from([MALLOC] * 6 + [FREE] * 6 + [AWAIT, COMPLETE, EMPTY, FAIL]),
    st.just(0) | REQUESTS,
    st.sampled_from([0, 0, 0, 7]),
    st.sampled_from([DEFAULT_POOL] * 4 + [(0, 1)]),
    st.integers(0, 1000),
)
SETTINGS = allocator_settings(torch=st.sampled_from([(2, 4), (2, 11), (2, 12), (2, 14)]))
LIMITS = st.sampled_from([None, 120 * MIB, 300 * MIB])


@pytest.fixture(autouse=True, scope="module", params=[3, blocks.CHUNK])
def chunks(request: pytest.FixtureRequest) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "CHUNK", request.param)
        yield


def program_of(steps: list[tuple[int, int, int, tuple[int, int], int]]) -> list[Operation]:
    """The steps as operations; the last number picks the block of a free or completion."""
    operations: list[Operation] = []
    made: dict[int, list[Operation]] = {FREE: [], COMPLETE: []}
    count = 0
    for kind, size, stream, pool, pick in steps:
        if kind in (MALLOC, FAIL):
            operations.append(Operation(kind, count, size, stream, pool))
            made[FREE] += [operations[-1]] if kind == MALLOC else []
            count += 1
        elif kind == EMPTY:
            operations.append(Operation(EMPTY, 0, 0, 0, DEFAULT_POOL))
        elif chosen := made[COMPLETE if kind == COMPLETE else FREE]:
            operation = chosen.pop(pick % len(chosen))
            operations.append(operation._replace(kind=kind))
            made[COMPLETE] += [operation] if kind == AWAIT else []
    return operations


def state_of(replay: Replay) -> tuple[object, ...]:
    allocator = replay.allocator
    free = [
        [(block.address, block.size, block.key, block.born) for block in arena.free]
        for pair in allocator.supply.pools.values()
        for half in (pair.small, pair.large)
        for arena in half.cached()
    ]
    live = [None if block is None else (block.address, block.requested) for block in replay.blocks]
    return free, live, allocator.heap(), allocator.active, allocator.peak_active, allocator.counters, replay.failed


@given(st.lists(STEPS, max_size=120), SETTINGS, LIMITS, st.lists(st.integers(0, 120), max_size=4))
def test_compiled_program_equals_each_operation(
    steps: list[tuple[int, int, int, tuple[int, int], int]], settings: Settings, limit: int | None, stops: list[int]
) -> None:
    operations = program_of(steps)
    compiled, each = (
        Replay(Program(form, len(operations)), Allocator(settings, Driver(limit=limit)))
        for form in (tuple(operations), operations)
    )
    for stop in [*sorted(stops), None]:
        compiled.run(stop)
        each.run(stop)
        assert compiled.position == each.position
        assert state_of(compiled) == state_of(each)
