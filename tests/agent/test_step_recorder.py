"""One step at a time is recorded, within bounds, and each outcome is counted."""

import pytest

from fake_source import HandClock, RecordingSource, ScriptedSource
from gpufrag.agent.step_recorder import (
    HISTORY_IN_USE,
    INTERRUPTED,
    LONGEST_STEP,
    MAX_EVENTS,
    MAX_SKIPPED,
    NOT_YET,
    RECORDED,
    SLICE,
    TOO_LONG,
    TOO_MANY_EVENTS,
    StepRecorder,
)


@pytest.fixture
def source() -> RecordingSource:
    return RecordingSource()


@pytest.fixture
def recorder(source: RecordingSource, clock: HandClock) -> StepRecorder:
    return StepRecorder(source, clock.clocks)


def test_step_is_recorded_from_start_to_finish(recorder: StepRecorder, source: RecordingSource) -> None:
    assert recorder.start_step(0.1)
    assert recorder.underway
    assert not recorder.start_step(0.1), "one at a time"
    assert recorder.finish().events is not None
    assert (source.calls, recorder.underway, dict(recorder.results)) == (["start", "read"], False, {})


def test_source_without_history_is_never_recorded(clock: HandClock) -> None:
    recorder = StepRecorder(ScriptedSource(), clock.clocks)
    assert not recorder.start_step(0.1)
    assert recorder.finish() is None
    assert recorder.results == {}


@pytest.mark.parametrize(("refusal", "counted"), [(HISTORY_IN_USE, {HISTORY_IN_USE: 1}), (NOT_YET, {})])
def test_refusal_is_counted_with_its_reason(recorder: StepRecorder, source, refusal: str, counted: dict) -> None:
    source.refusal = refusal
    assert not recorder.start_step(0.1)
    assert (recorder.underway, recorder.results) == (False, counted)


@pytest.mark.parametrize(("count", "result"), [(None, INTERRUPTED), (MAX_EVENTS, TOO_MANY_EVENTS)])
def test_lost_recording_is_counted_and_not_read(recorder: StepRecorder, source, count: int | None, result: str) -> None:
    recorder.start_step(0.1)
    source.count = count
    assert recorder.finish() is None
    assert (source.calls[-1], recorder.results) == ("drop", {result: 1})


@pytest.mark.parametrize("is_slice", [False, True])
def test_overflowed_ring_is_enough_for_a_slice(recorder, source: RecordingSource, is_slice: bool) -> None:
    recorder.start_slice() if is_slice else recorder.start_step(0.1)
    source.count, source.complete = MAX_EVENTS if is_slice else 0, False
    capture = recorder.finish()
    assert (capture.events is not None) == is_slice
    assert recorder.results == ({} if is_slice else {TOO_MANY_EVENTS: 1})


@pytest.mark.parametrize(("last_step", "limit"), [(0.0, 30.0), (1.0, 30.0), (20.0, 80.0), (1000.0, LONGEST_STEP)])
def test_step_limit_follows_the_last_step(recorder, clock, last_step: float, limit: float) -> None:
    recorder.start_step(last_step)
    clock.tick(limit - 1)
    assert recorder.time_left == pytest.approx(1.0)
    clock.tick(1)
    assert recorder.finish() is None
    assert recorder.results == {TOO_LONG: 1}


def test_slice_that_is_over_is_read(recorder: StepRecorder, clock: HandClock) -> None:
    recorder.start_slice()
    clock.tick(SLICE)
    assert recorder.time_left <= 0
    assert recorder.finish() is not None


def skipped(recorder: StepRecorder) -> int:
    """Windows until the next attempt."""
    windows = 0
    while not recorder.start_step(0.1):
        windows += 1
    return windows


def test_too_long_steps_are_tried_ever_less(recorder: StepRecorder, source: RecordingSource) -> None:
    recorder.start_step(0.1)
    source.count = MAX_EVENTS
    recorder.finish()
    waits = []
    for _ in range(9):
        waits.append(skipped(recorder))
        recorder.finish()
    assert waits == [1, 3, 7, 15, 31, 63, MAX_SKIPPED, MAX_SKIPPED, MAX_SKIPPED]
    skipped(recorder)
    source.count = 0
    recorder.finish()
    recorder.note(RECORDED)
    assert skipped(recorder) == 0


def test_start_that_raises_leaves_no_recording(recorder: StepRecorder, source: RecordingSource) -> None:
    source.start_recording = lambda max_events: 1 // 0
    with pytest.raises(ZeroDivisionError):
        recorder.start_step(0.1)
    assert not recorder.underway
    source.start_recording = lambda max_events: None
    assert recorder.start_step(0.1)


def test_signal_handler_may_end_an_ending_recording(recorder, source: RecordingSource) -> None:
    recorder.start_step(0.1)
    finish, ended = source.finish_recording, []

    def interrupted(read: bool) -> object:
        ended.append(recorder.finish())
        return finish(read)

    source.finish_recording = interrupted
    assert recorder.finish() is not None
    assert ended == [None]
