"""Where a replay differs from its recording."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpufrag.model.allocatable import Driver
from gpufrag.model.settings import Settings
from gpufrag.model.trace.events import Event
from gpufrag.model.trace.verification import difference
from gpufrag.model.trace.whatif import begin, read_run
from simulated_trace import Recorder

MIB = 1 << 20
LIMIT = 100 * MIB


def job() -> Recorder:
    recorder = Recorder(driver=Driver(limit=LIMIT))
    block = recorder.malloc(30 * MIB)
    assert block is not None
    recorder.malloc(40 * MIB)
    recorder.malloc(60 * MIB)  # fails
    recorder.free(block)
    recorder.empty_cache()
    recorder.malloc(20 * MIB)
    return recorder


def compared(
    recorder: Recorder, events: Sequence[Event], settings: Settings = Settings(), limit: int = LIMIT
) -> str | None:
    """The replay under `settings` and `limit`, compared with `events`."""
    run = read_run(recorder.trace, recorder.heap(), Driver(limit=LIMIT))
    seen: list[Event] = []
    replay = begin(run, settings, limit, observe=seen.append)
    replay.run()
    return difference(events, seen, replay, run)


def test_replay_of_the_recording_has_no_difference() -> None:
    recorder = job()
    assert compared(recorder, recorder.trace) is None


def test_first_change_that_differs_is_named() -> None:
    recorder = job()
    events = [event._replace(size=24 * MIB) if event.size == 20 * MIB else event for event in recorder.trace]
    found = compared(recorder, events)
    assert found is not None
    assert found.startswith("change 3 of the segments is segment_alloc of 25,165,824 bytes at 0x")
    assert "in the recording, segment_alloc of 20,971,520 bytes at 0x" in found


def test_order_within_a_flush_is_no_difference() -> None:
    recorder = Recorder()
    for block in [recorder.malloc(size * MIB) for size in (30, 40)]:
        assert block is not None
        recorder.free(block)
    recorder.empty_cache()
    assert compared(recorder, [*recorder.trace[:-2], *reversed(recorder.trace[-2:])]) is None


@pytest.mark.parametrize(
    ("events", "limit", "expected"),
    [
        (slice(-2), LIMIT, "the segments change 3 times in the recording, 4 times in the replay"),
        (slice(None), 1000 * MIB, "change 2 of the segments is segment_free"),
    ],
)
def test_missing_change_or_failure_is_named(events: slice, limit: int, expected: str) -> None:
    recorder = job()
    assert (compared(recorder, recorder.trace[events], limit=limit) or "").startswith(expected)


def test_request_that_failed_only_in_the_recording_is_named() -> None:
    recorder = job()
    events = [*recorder.trace, Event("oom", None, 60 * MIB, 0)]
    assert compared(recorder, events) == "of 5 requests 2 fail in the recording, 1 in the replay"
