"""One step at a time is recorded, within bounds, and each outcome is counted."""

from __future__ import annotations

import pytest

from fake_source import HandClock, RecordingSource, ScriptedSource
from gpufrag.agent import step_recorder
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
    capture = recorder.finish()
    assert capture is not None
    assert capture.events is not None
    assert (source.calls, recorder.underway, dict(recorder.results)) == (["start", "read"], False, {})


def test_source_without_history_is_never_recorded(clock: HandClock) -> None:
    recorder = StepRecorder(ScriptedSource(), clock.clocks)
    assert not recorder.start_step(0.1)
    assert recorder.finish() is None
    assert recorder.results == {}


def test_refusal_is_counted_with_its_reason(recorder: StepRecorder, source: RecordingSource) -> None:
    source.refusal = HISTORY_IN_USE
    assert not recorder.start_step(0.1)
    assert (recorder.underway, recorder.results) == (False, {HISTORY_IN_USE: 1})


def test_device_that_is_not_in_use_yet_is_not_counted(recorder: StepRecorder, source: RecordingSource) -> None:
    source.refusal = NOT_YET
    assert not recorder.start_step(0.1)
    assert recorder.results == {}


def test_recording_that_the_program_ended_is_lost(recorder: StepRecorder, source: RecordingSource) -> None:
    recorder.start_step(0.1)
    source.count = None
    assert recorder.finish() is None
    assert (source.calls[-1], recorder.results) == ("drop", {INTERRUPTED: 1})


def test_too_many_events_are_not_read(recorder: StepRecorder, source: RecordingSource) -> None:
    recorder.start_step(0.1)
    source.count = MAX_EVENTS
    assert recorder.finish() is None
    assert (source.calls[-1], recorder.results) == ("drop", {TOO_MANY_EVENTS: 1})


@pytest.mark.parametrize("is_slice", [False, True])
def test_ring_that_overflowed_is_enough_for_a_slice_alone(recorder, source: RecordingSource, is_slice: bool) -> None:
    recorder.start_slice() if is_slice else recorder.start_step(0.1)
    source.count, source.complete = MAX_EVENTS if is_slice else 0, False
    capture = recorder.finish()
    assert capture is not None
    assert (capture.events is not None) == is_slice
    assert recorder.results == ({} if is_slice else {TOO_MANY_EVENTS: 1})


@pytest.mark.parametrize(("last_step", "limit"), [(0.0, 30.0), (1.0, 30.0), (20.0, 80.0), (1000.0, LONGEST_STEP)])
def test_step_may_take_some_lengths_of_the_last_one(recorder, clock, last_step: float, limit: float) -> None:
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


def test_steps_that_are_too_long_are_tried_ever_less(recorder: StepRecorder, source: RecordingSource) -> None:
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
    def fail(max_events: int) -> None:
        raise RuntimeError("torch")

    source.start_recording = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError):
        recorder.start_step(0.1)
    assert not recorder.underway
    source.start_recording = lambda max_events: None  # type: ignore[method-assign]
    assert recorder.start_step(0.1)


def test_signal_handler_that_ends_a_recording_twice_does_not_wait(recorder, source: RecordingSource) -> None:
    recorder.start_step(0.1)
    finish, ended = source.finish_recording, []

    def interrupted(read: bool) -> object:
        ended.append(recorder.finish())
        return finish(read)

    source.finish_recording = interrupted  # type: ignore[method-assign, assignment]
    assert recorder.finish() is not None
    assert ended == [None]


def test_bound_of_events_keeps_the_pause_short() -> None:
    """Reading costs 0.5 us per event."""
    assert step_recorder.MAX_EVENTS * 0.5e-6 <= 0.05
