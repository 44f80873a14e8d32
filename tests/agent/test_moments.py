"""Snapshots that no longer tell something about now."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpufrag.agent.moments import ALONE, BESIDE, WINDOW, current
from gpufrag.mixin.config import Timing
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import Heap
from gpufrag.wire.sample import Snapshot

EMPTY = measure(Heap(()), Driver())
NOW = 1e9


def shots(**ages: float) -> list[Snapshot]:
    """One of each moment, so many seconds old."""
    return [Snapshot(NOW - age, at, 0.0, EMPTY) for at, age in ages.items()]


def left(found: list[Snapshot], window: float = 10.0) -> list[str]:
    return [snapshot.at for snapshot in current(found, NOW, window)]


def test_moments_that_take_turns_are_all_current() -> None:
    assert left(shots(peak=15, boundary=5, timer=0)) == ["boundary", "peak", "timer"]


def test_one_that_no_longer_comes_goes_while_another_is_fresh() -> None:
    assert left(shots(boundary=10 * BESIDE + 1, timer=0)) == ["timer"]


def test_one_that_has_no_company_stays_much_longer_but_not_for_ever() -> None:
    assert left(shots(boundary=10 * ALONE - 1)) == ["boundary"]
    assert left(shots(boundary=10 * ALONE + 1)) == []


def test_where_snapshots_are_dear_and_rare_they_are_current_for_longer() -> None:
    assert left(shots(boundary=500, timer=0), window=160) == ["boundary", "timer"]


def test_short_windows_do_not_make_moments_flicker() -> None:
    assert left(shots(boundary=50, timer=0), window=0.05) == ["boundary", "timer"]


def test_one_snapshot_does_not_last_until_the_restart_trigger_fires() -> None:
    assert ALONE * WINDOW + Timing().window < Timing().hold


@given(st.lists(st.floats(-100, 1000), max_size=3), st.floats(0.01, 1000))
def test_only_what_is_old_is_left_out_and_the_newest_last(ages: list[float], window: float) -> None:
    found = shots(**dict(zip(("boundary", "peak", "timer"), ages)))
    kept = current(found, NOW, window)
    assert all(snapshot in kept for snapshot in found if NOW - snapshot.time <= BESIDE * window)
    assert not kept or max(found, key=lambda snapshot: snapshot.time) in kept
