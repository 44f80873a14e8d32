"""How a heap's memory lies, in equal parts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given

from gpufrag.model.heap import parse
from gpufrag.model.layout import cells, map_states
from strategies import INACTIVE, LIVE, MIB, segment, snapshots


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([], ""),
        ([segment(0, [(8 * MIB, LIVE)])], "llll"),
        ([segment(0, [(4 * MIB, LIVE), (2 * MIB, INACTIVE), (2 * MIB, LIVE)])], "llsl"),
        ([segment(0, [(5 * MIB, LIVE), (3 * MIB, INACTIVE)])], "llss"),
        ([segment(0, [(4 * MIB, LIVE)]), segment(64 * MIB, [(4 * MIB, INACTIVE)])], "llrr"),
        ([segment(0, [(4 * MIB, LIVE)]), segment(64 * MIB, [(4 * MIB, INACTIVE)], segment_pool_id=(0, 1))], "llcc"),
    ],
)
def test_parts_have_the_state_of_most_bytes(segments: list[dict[str, Any]], expected: str) -> None:
    assert cells(parse({"segments": segments, "allocator_settings": {}}), 4) == expected


@given(snapshots())
def test_parts_as_small_as_a_unit_have_exact_shares(snapshot: dict[str, Any]) -> None:
    heap = parse(snapshot)
    sizes: Counter[str] = Counter()
    for one in heap.segments:
        for size, state in zip(one.sizes, map_states(one, heap.settings)):
            sizes[state] += size // 512
    assert Counter(cells(heap, sum(sizes.values()) or 1)) == +sizes


@given(snapshots())
def test_number_of_parts_is_bounded(snapshot: dict[str, Any]) -> None:
    assert len(cells(parse(snapshot), 16)) <= 16
