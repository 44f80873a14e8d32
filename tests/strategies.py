"""Made-up heaps for property tests: `from strategies import snapshots`. Their parts keep torch's own invariants."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from gpufrag.model.allocatable import Driver
from gpufrag.model.settings import INTERVALS, Settings

MIB = 1 << 20
GIB = 1 << 30
PAGE = 20 * MIB
LIVE, AWAITING, INACTIVE = "active_allocated", "active_pending_free", "inactive"
STREAMS = (0, 0x7000)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


REQUESTS = st.one_of(st.integers(1, 4096), st.integers(1, 3 * MIB), st.integers(1, 90 * MIB), st.just(20 * MIB))
"""Sizes of requests in bytes: small ones, of both pools, large ones, and that of a large segment."""


def allocator_settings(**more: Any) -> st.SearchStrategy[Settings]:
    """Settings that change the simulated allocator; `more` are strategies for further fields."""
    return st.builds(
        Settings,
        max_split_size=st.sampled_from([None, 20 * MIB, 64 * MIB]),
        max_non_split_rounding=st.sampled_from([20 * MIB, 40 * MIB]),
        roundup_power2_divisions=st.sampled_from([(0,) * INTERVALS, (4,) * INTERVALS]),
        garbage_collection_threshold=st.sampled_from([0.0, 0.5]),
        expandable_segments=st.booleans(),
        **more,
    )


def block(address: int, size: int, state: str, waste: int = 0) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size - waste, "state": state, "frames": []}


def segment(address: int, blocks: list[tuple[int, str]], *, waste: int = 0, **changes: Any) -> dict[str, Any]:
    """A segment in torch's form from the (size, state) of its blocks; `changes` are put over its fields last."""
    rows: list[dict[str, Any]] = []
    for size, state in blocks:
        rows.append(block(address + sum(row["size"] for row in rows), size, state, waste))
    live = [row for row in rows if row["state"] == LIVE]
    active = [row for row in rows if row["state"] != INACTIVE]
    return {
        "device": 0,
        "address": address,
        "total_size": sum(row["size"] for row in rows),
        "allocated_size": sum(row["size"] for row in live),
        "active_size": sum(row["size"] for row in active),
        "requested_size": sum(row["requested_size"] for row in active),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": rows,
        **changes,
    }


def merged(blocks: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Neighbours that are both inactive are one block, as torch leaves them."""
    result: list[tuple[int, str]] = []
    for size, state in blocks:
        if result and result[-1][1] == state == INACTIVE:
            size += result.pop()[0]
        result.append((size, state))
    return result


@st.composite
def _blocks(draw: st.DrawFn, total: int) -> list[tuple[int, str]]:
    cuts = draw(st.lists(st.integers(1, total // 512 - 1), max_size=6, unique=True))
    edges = sorted({0, *(512 * cut for cut in cuts), total})
    states = st.sampled_from((LIVE, INACTIVE, INACTIVE, AWAITING))
    return merged([(end - start, draw(states)) for start, end in pairwise(edges)])


def _total(small: bool, expandable: bool) -> st.SearchStrategy[int]:
    if small:
        return st.integers(1, 4).map(lambda pages: 2 * MIB * pages) if expandable else st.just(2 * MIB)
    if expandable:
        return st.integers(1, 6).map(lambda pages: PAGE * pages)
    return st.just(PAGE) | st.integers(5, 100).map(lambda grid: 2 * MIB * grid)


@st.composite
def snapshots(draw: st.DrawFn, expandable: bool | None = None, **settings: Any) -> dict[str, Any]:
    """A snapshot of one device, its segments in the order of their addresses; `settings` as torch records them."""
    mapped = draw(st.booleans()) if expandable is None else expandable
    segments = []
    address = 0x7F00_0000_0000 // PAGE * PAGE
    for _ in range(draw(st.integers(0, 6))):
        small = draw(st.booleans())
        blocks = draw(_blocks(draw(_total(small, mapped))))
        address += PAGE * draw(st.integers(1, 4))
        segments.append(
            segment(
                address,
                blocks,
                waste=draw(st.integers(0, 511)),
                segment_type="small" if small else "large",
                stream=draw(st.sampled_from(STREAMS)),
                segment_pool_id=draw(st.sampled_from(((0, 0), (0, 0), (0, 0), (0, 1)))),
                is_expandable=mapped,
            )
        )
        address += -(-segments[-1]["total_size"] // PAGE) * PAGE
    return {"segments": segments, "allocator_settings": {"expandable_segments": mapped, **settings}}


@st.composite
def drivers(draw: st.DrawFn, reserved: int) -> Driver:
    """A driver reading that fits a heap of `reserved` bytes: free bytes are not also reserved."""
    free = draw(st.integers(0, 8 * GIB) | st.integers(0, 64 * MIB))
    others = draw(st.integers(0, 2 * GIB))
    size = free + reserved + others
    limits = st.integers(0, size) | st.integers(reserved, reserved + 64 * MIB) | st.integers(size, 2 * size)
    limit = draw(st.none() | limits)
    return draw(
        st.sampled_from((Driver(free, size, limit), Driver(None, size, limit), Driver(free, None, limit), Driver()))
    )


def reserved_by(snapshot: dict[str, Any]) -> int:
    return sum(segment["total_size"] for segment in snapshot["segments"])
