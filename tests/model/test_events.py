"""Traces: what is read from them, what is refused, and the program that is found behind them."""

from __future__ import annotations

from typing import Any

import pytest

from gpufrag.errors import BadInput
from gpufrag.model.allocator import Allocator
from gpufrag.model.events import (
    AWAIT,
    COMPLETE,
    EMPTY,
    FAIL,
    FREE,
    MALLOC,
    Event,
    parse_rows,
    parse_trace,
    read_program,
)
from gpufrag.model.reach import Driver
from gpufrag.model.replay import Replay
from gpufrag.model.settings import Settings

MIB = 1 << 20
COLUMNS = ["action", "addr", "size", "stream"]


def kinds(*events: Event, **recorded: Any) -> list[int]:
    return [operation.kind for operation in read_program(events, **recorded).operations]


def alloc(address: int, size: int = 100) -> Event:
    return Event("alloc", address, size, 0)


def free(address: int, size: int = 100) -> list[Event]:
    return [Event("free_requested", address, size, 0), Event("free_completed", address, size, 0)]


def segment(action: str, size: int, address: int = 0) -> Event:
    return Event(f"segment_{action}", address, size, 0)


def test_rows_are_read_by_their_columns() -> None:
    rows = [[7, "alloc", 512, 4096], [0, "oom", 1024, None]]
    assert parse_rows(rows, ["stream", "action", "size", "addr"]) == [
        Event("alloc", 4096, 512, 7),
        Event("oom", None, 1024, 0),
    ]


def test_rows_may_tell_the_pool() -> None:
    assert parse_rows([["alloc", 4096, 512, 7, [0, 1]]], [*COLUMNS, "pool_id"]) == [
        Event("alloc", 4096, 512, 7, (0, 1))
    ]


def test_torch_s_trace_is_read() -> None:
    trace = [
        {"action": "alloc", "addr": 4096, "size": 512, "stream": 7, "time_us": 1, "frames": []},
        {"action": "snapshot", "addr": 0, "size": 9, "stream": 0},
        {"action": "oom", "device_free": 77, "size": 1024, "stream": 0},
        {"action": "free_requested", "addr": 4096, "size": 512, "stream": 7, "pool_id": (0, 1)},
    ]
    assert parse_trace(trace) == [
        Event("alloc", 4096, 512, 7),
        Event("oom", None, 1024, 0),
        Event("free_requested", 4096, 512, 7, (0, 1)),
    ]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (["alloc", 1, 2], "event 1 is not a row of action, addr, size, stream"),
        (7, "event 1 is not a row of action, addr, size, stream"),
        (["grow", 1, 2, 3], "event 1 has the unknown action 'grow'"),
        ([["alloc"], 1, 2, 3], "event 1 is not a row"),
        (["snapshot", 1, 2, 3], "event 1 has the unknown action"),
        (["alloc", None, 2, 3], "event 1 (alloc)"),
        (["alloc", 1, -2, 3], "event 1 (alloc)"),
        (["alloc", 1, 2, 3.0], "event 1 (alloc)"),
        (["oom", None, True, 0], "event 1 (oom)"),
    ],
)
def test_a_broken_row_is_named(row: Any, told: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_rows([["alloc", 1, 2, 3], row], COLUMNS)
    assert told in str(caught.value)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(BadInput, match="no column 'size'"):
        parse_rows([], ["action", "addr", "stream"])


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"action": "alloc", "addr": 1, "stream": 0}, "event 0 has no key 'size'"),
        (["alloc"], "event 0 is not a trace entry"),
        ({"action": "alloc", "addr": 1, "size": "2", "stream": 0}, "event 0 (alloc)"),
        ({"action": "alloc", "addr": 1, "size": 2, "stream": 0, "pool_id": 5}, "event 0 is not a trace entry"),
        ({"action": "alloc", "addr": 1, "size": 2, "stream": 0, "pool_id": (5,)}, "event 0 (alloc)"),
    ],
)
def test_a_broken_trace_entry_is_named(entry: Any, told: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_trace([entry])
    assert told in str(caught.value)


def test_a_free_is_done_at_once_or_waits() -> None:
    requested, completed = free(4096)
    assert kinds(alloc(4096), requested, completed) == [MALLOC, FREE]
    assert kinds(alloc(4096), requested, alloc(8192), completed) == [MALLOC, AWAIT, MALLOC, COMPLETE]
    assert kinds(alloc(4096), requested) == [MALLOC, AWAIT]


def test_an_address_that_is_allocated_anew_had_been_completed() -> None:
    requested, _ = free(4096)
    assert kinds(alloc(4096), requested, alloc(4096)) == [MALLOC, AWAIT, COMPLETE, MALLOC]


def test_an_address_cannot_be_allocated_twice() -> None:
    with pytest.raises(BadInput, match="event 1 allocates 0x1000, which is still allocated"):
        kinds(alloc(4096), alloc(4096))


def test_frees_of_blocks_older_than_the_trace_are_counted() -> None:
    program = read_program([*free(4096), alloc(4096), *free(4096)])
    assert [operation.kind for operation in program.operations] == [MALLOC, FREE]
    assert program.strangers == 1


def test_operations_of_one_block_carry_its_number() -> None:
    program = read_program([alloc(4096), alloc(8192), *free(4096)])
    assert [operation.allocation for operation in program.operations] == [0, 1, 0]
    assert program.allocations == 2


def test_segments_that_go_without_need_are_an_empty_cache() -> None:
    gone = [segment("free", 20 * MIB), segment("free", 2 * MIB)]
    assert kinds(segment("alloc", 22 * MIB), *gone, alloc(4096)) == [EMPTY, MALLOC]
    assert kinds(segment("alloc", 22 * MIB), *gone) == [EMPTY]
    new = [segment("alloc", 20 * MIB), alloc(4096, 3 * MIB)]
    assert kinds(segment("alloc", 22 * MIB), *gone, *new, limit=100 * MIB) == [EMPTY, MALLOC]


def test_segments_that_go_for_a_request_at_the_limit_are_not() -> None:
    events = [segment("alloc", 22 * MIB), segment("free", 22 * MIB), segment("alloc", 30 * MIB), alloc(1, 30 * MIB)]
    assert kinds(*events, limit=40 * MIB) == [MALLOC]
    assert kinds(*events) == [EMPTY, MALLOC]


def test_segments_that_go_before_an_out_of_memory_error_are_not() -> None:
    events = [segment("alloc", 22 * MIB), segment("free", 22 * MIB), Event("oom", None, 90 * MIB, 0)]
    assert kinds(*events, limit=40 * MIB) == [FAIL]


def test_collected_segments_are_not() -> None:
    settings = Settings(garbage_collection_threshold=0.5)
    events = [segment("alloc", 30 * MIB), segment("free", 30 * MIB), segment("alloc", 12 * MIB), alloc(1, 12 * MIB)]
    assert kinds(*events, settings=settings, limit=50 * MIB) == [MALLOC]
    assert kinds(*events, settings=settings, limit=80 * MIB) == [EMPTY, MALLOC]


def test_a_replay_can_be_stepped() -> None:
    program = read_program([alloc(4096), alloc(8192), *free(4096)])
    replay = Replay(program, Allocator())
    replay.run(until=2)
    assert (replay.position, replay.done, replay.allocator.active) == (2, False, 1024)
    replay.run()
    assert (replay.position, replay.done, replay.allocator.active) == (3, True, 512)


def test_a_replay_goes_on_without_what_fails() -> None:
    program = read_program([alloc(4096, 30 * MIB), alloc(8192, 30 * MIB), *free(8192), *free(4096)])
    replay = Replay(program, Allocator(driver=Driver(limit=40 * MIB)))
    replay.run()
    assert (replay.allocator.counters.ooms, replay.allocator.active) == (1, 0)


def test_a_request_that_failed_when_recorded_leaves_nothing_behind_where_it_succeeds() -> None:
    replay = Replay(read_program([Event("oom", None, 30 * MIB, 0)]), Allocator())
    replay.run()
    assert (replay.allocator.active, replay.allocator.reserved) == (0, 30 * MIB)


def test_a_replay_flushes_where_the_program_did() -> None:
    replay = Replay(
        read_program([segment("alloc", 2 * MIB), alloc(1), *free(1), segment("free", 2 * MIB)]), Allocator()
    )
    replay.run()
    assert replay.allocator.reserved == 0
