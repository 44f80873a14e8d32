"""Whether a recorded run fits on a card."""

from __future__ import annotations

import pytest

from gpufrag.model.fit import CONTEXT, Card, Fit, fit
from gpufrag.model.settings import SEGMENT_GRID, Settings
from gpufrag.model.trace.whatif import (
    EMPTIED,
    OWN_HEAP,
    PACKED,
    Run,
    begin,
    best_anchor,
    on_any_device,
    read_run,
    smallest_limit,
)
from gpufrag.snapshot_file.recording import read_recordings
from helpers import TESTS


@pytest.fixture(scope="module")
def recorded() -> Run:
    (recording,) = read_recordings(TESTS / "golden" / "churn-small-default.json.gz")
    return read_run(recording.events, recording.end, recording.before, recording.limit)


@pytest.fixture(scope="module")
def plain(recorded: Run) -> Fit:
    return fit(recorded, {"": Settings()}, [])[0]


def run_at(recorded: Run, limit: int) -> tuple[bool, int]:
    replay = begin(recorded, Settings(), limit, start=PACKED)
    replay.run()
    return not replay.failed, replay.allocator.counters.alloc_retries


def test_smallest_limit_succeeds_and_2_mib_less_fails(recorded: Run, plain: Fit) -> None:
    assert plain.smallest_limit is not None
    assert run_at(recorded, plain.smallest_limit) == (True, plain.flushes_at_smallest)
    assert not run_at(recorded, plain.smallest_limit - SEGMENT_GRID)[0]


def test_card_fits_from_the_smallest_limit_on(recorded: Run, plain: Fit) -> None:
    assert plain.smallest_limit is not None
    enough = Card("enough", plain.smallest_limit + CONTEXT)
    short = Card("short", enough.size - 1)
    found, _anchored = fit(recorded, {"": Settings()}, [enough, short, Card("large", 1 << 40)])
    assert found.flushes == {"enough": plain.flushes_at_smallest, "short": None, "large": 0}


def test_memory_taken_by_others_is_subtracted(recorded: Run, plain: Fit) -> None:
    assert plain.smallest_limit is not None
    card = Card("card", plain.smallest_limit + CONTEXT)
    alone, *_ = fit(recorded, {"": Settings()}, [card], CONTEXT)
    shared, *_ = fit(recorded, {"": Settings()}, [card], CONTEXT + (1 << 30))
    assert alone.flushes["card"] is not None
    assert shared.flushes["card"] is None


def test_every_setting_is_tried_in_order(recorded: Run) -> None:
    tried: list[str] = []
    fits = fit(recorded, {"a": Settings(), "b": Settings(expandable_segments=True)}, [], progress=tried.append)
    assert tried == ["a", "b", "an anchor"]
    assert [one.conf for one in fits] == ["a", "b", ""]


def test_trace_that_begins_late_has_the_recorded_setting_three_times() -> None:
    (recording,) = read_recordings(TESTS / "golden" / "churn-small-default.json.gz")
    late = on_any_device(read_run(recording.events[4000:], recording.end, recording.before, recording.limit))
    fits = fit(late, {"": late.end.settings, "other": Settings(expandable_segments=True)}, [])
    own, packed, _other, emptied, anchored = fits
    assert [one.packed for one in fits] == [False, True, True, False, True]
    assert emptied.smallest_limit == smallest_limit(late, late.end.settings, start=EMPTIED)
    assert best_anchor(late, late.end.settings) == (anchored.start.anchor, anchored.smallest_limit)
    assert own.smallest_limit == smallest_limit(late, late.end.settings, start=OWN_HEAP)
    assert packed.smallest_limit == smallest_limit(late, late.end.settings)
    assert own.smallest_limit != packed.smallest_limit
