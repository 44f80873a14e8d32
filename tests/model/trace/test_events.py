"""Parsing traces, rejecting invalid ones, and recovering the program behind them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpufrag.errors import BadInput
from gpufrag.model.trace.events import Event, parse_rows, parse_trace

COLUMNS = ["action", "addr", "size", "stream"]


def test_rows_are_parsed_by_column() -> None:
    rows = [[7, "alloc", 512, 4096], [0, "oom", 1024, None]]
    assert parse_rows(rows, ["stream", "action", "size", "addr"]) == [
        Event("alloc", 4096, 512, 7),
        Event("oom", None, 1024, 0),
    ]


def test_row_may_have_a_pool() -> None:
    assert parse_rows([["alloc", 4096, 512, 7, [0, 1]]], [*COLUMNS, "pool_id"]) == [
        Event("alloc", 4096, 512, 7, (0, 1))
    ]


def test_torch_trace_is_parsed() -> None:
    trace = [
        {"action": "alloc", "addr": 4096, "size": 512, "stream": 7, "time_us": 1, "frames": []},
        {"action": "snapshot", "addr": 0, "size": 9, "stream": 0},
        {"action": "oom", "device_free": 77, "size": 1024, "stream": 0},
        {"action": "free_requested", "addr": 4096, "size": 512, "stream": 7, "pool_id": (0, 1)},
    ]
    assert parse_trace(trace) == [
        Event("alloc", 4096, 512, 7),
        Event("oom", 77, 1024, 0),
        Event("free_requested", 4096, 512, 7, (0, 1)),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
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
        ({"action": "alloc", "addr": 1, "stream": 0}, "event 0 has no key 'size'"),
        ("alloc", "event 0 is not a trace entry"),
        ({"action": "alloc", "addr": 1, "size": "2", "stream": 0}, "event 0 (alloc)"),
        ({"action": "alloc", "addr": 1, "size": 2, "stream": 0, "pool_id": 5}, "event 0 is not a trace entry"),
        ({"action": "alloc", "addr": 1, "size": 2, "stream": 0, "pool_id": (5,)}, "event 0 (alloc)"),
    ],
)
def test_broken_event_is_named(row: Any, message: str) -> None:
    """A dict or text is an entry of torch's trace, anything else a row of a recording."""
    with pytest.raises(BadInput, match=re.escape(message)):
        parse_trace([row]) if isinstance(row, (dict, str)) else parse_rows([["alloc", 1, 2, 3], row], COLUMNS)


def test_column_without_a_name_is_refused() -> None:
    with pytest.raises(BadInput, match="not all text"):
        parse_rows([["alloc"]], [*COLUMNS, 5])  # type: ignore[list-item]


def test_missing_column_is_named() -> None:
    with pytest.raises(BadInput, match="no column 'size'"):
        parse_rows([], ["action", "addr", "stream"])
