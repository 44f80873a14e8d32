"""The largest request that comes and goes."""

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
    """A live block of `blocks[n]` MiB at the begin of segment n; as much again is free behind it."""
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


def test_what_is_made_once_and_stays_does_not_recur() -> None:
    assert _largest(_heap({1: 900}), _heap({1: 900}), _heap({1: 900})) is None


def test_the_largest_that_went_is_told_as_it_was_requested() -> None:
    assert _largest(_heap({1: 900, 2: 30, 3: 20}), _heap({1: 900})) == 30 * MIB - 1


def test_it_need_not_have_gone_at_the_last_snapshot() -> None:
    assert _largest(_heap({2: 30}), _heap({}), _heap({2: 30}), _heap({2: 30})) == 30 * MIB - 1


def test_another_block_at_the_same_place_is_another_one() -> None:
    assert _largest(_heap({1: 50}), _heap({1: 40})) == 50 * MIB - 1


def test_after_an_hour_it_is_no_longer_expected() -> None:
    heaps = _heap({1: 30}), _heap({})
    assert _largest(*heaps, at=WINDOW) == 30 * MIB - 1
    assert _largest(*heaps, at=WINDOW + 1) is None


def test_small_requests_and_private_pools_are_not_looked_at() -> None:
    assert _largest(_heap({1: 1}, small=True), _heap({})) is None
    assert _largest(_heap({1: 30}, pool=(0, 1)), _heap({})) is None


@given(st.lists(st.dictionaries(st.integers(0, 5), st.integers(2, 9), max_size=5), min_size=1, max_size=12))
def test_it_is_the_largest_of_all_that_went_within_the_window(story: list[dict[int, int]]) -> None:
    gone = [
        size * MIB - 1
        for before, after in pairwise(story)
        for place, size in before.items()
        if after.get(place) != size
    ]
    assert _largest(*map(_heap, story)) == max(gone, default=None)


def test_only_what_may_still_matter_is_remembered() -> None:
    seen = Recurrence()
    for time in range(1000):
        seen = observe(seen, _heap({1: 2 + time % 7}), float(time))
    assert len(seen.gone) <= 7
    assert len(seen.live) == 1
    assert replace(seen, live=frozenset()).largest(1000.0) == 8 * MIB - 1
