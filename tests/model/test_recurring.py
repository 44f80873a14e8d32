"""The largest recurring request."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpufrag.model.heap import ALLOCATED, INACTIVE, Heap, Segment
from gpufrag.model.recurring import WINDOW, Recurrence, observe

MIB = 1 << 20
SEGMENT = 1 << 30


def _heap(blocks: dict[int, int], small: bool = False, pool: tuple[int, int] = (0, 0)) -> Heap:
    """Return a heap with a live block of `blocks[n]` MiB in segment n, and as much free memory after it."""
    return Heap(
        tuple(
            Segment(
                0, n * SEGMENT, 0, small, pool, False, (size * MIB,) * 2, (size * MIB - 1, 0), (ALLOCATED, INACTIVE)
            )
            for n, size in sorted(blocks.items())
        )
    )


def _largest(*heaps: Heap, at: float | None = None) -> int | None:
    seen = Recurrence()
    for time, heap in enumerate(heaps):
        seen = observe(seen, heap, float(time))
    return seen.largest(float(len(heaps)) if at is None else at)


def test_block_that_stays_does_not_recur() -> None:
    assert _largest(_heap({1: 900}), _heap({1: 900}), _heap({1: 900})) is None


def test_largest_ended_request_is_returned() -> None:
    assert _largest(_heap({1: 900, 2: 30, 3: 20}), _heap({1: 900})) == 30 * MIB - 1


def test_request_may_have_ended_earlier() -> None:
    assert _largest(_heap({2: 30}), _heap({}), _heap({2: 30}), _heap({2: 30})) == 30 * MIB - 1


def test_other_size_at_same_address_is_another_block() -> None:
    assert _largest(_heap({1: 50}), _heap({1: 40})) == 50 * MIB - 1


def test_request_expires_after_an_hour() -> None:
    heaps = _heap({1: 30}), _heap({})
    assert _largest(*heaps, at=WINDOW) == 30 * MIB - 1
    assert _largest(*heaps, at=WINDOW + 1) is None


def test_small_requests_and_private_pools_do_not_count() -> None:
    assert _largest(_heap({1: 1}, small=True), _heap({})) is None
    assert _largest(_heap({1: 30}, pool=(0, 1)), _heap({})) is None


@given(st.lists(st.dictionaries(st.integers(0, 5), st.integers(2, 9), max_size=5), min_size=1, max_size=12))
def test_largest_is_that_of_all_ended_requests(story: list[dict[int, int]]) -> None:
    gone = [
        size * MIB - 1
        for before, after in pairwise(story)
        for place, size in before.items()
        if after.get(place) != size
    ]
    assert _largest(*map(_heap, story)) == max(gone, default=None)


def test_state_is_bounded() -> None:
    seen = Recurrence()
    for time in range(1000):
        seen = observe(seen, _heap({1: 2 + time % 7}), float(time))
    assert len(seen.gone) <= 7
    assert len(seen.live) == 1
    assert replace(seen, live=frozenset()).largest(1000.0) == 8 * MIB - 1
