"""What a trace leaves open, in words."""

from __future__ import annotations

from gpufrag.model.allocatable import Driver
from gpufrag.model.settings import Settings
from gpufrag.model.trace.whatif import read_run
from gpufrag.reports.whatif import doubts
from simulated_trace import Recorder

MIB = 1 << 20


def test_doubts_are_counted_by_kind() -> None:
    """A graph that ended had one of two segments, and a failed request released nothing."""
    driver = Driver(limit=80 * MIB)
    recorder = Recorder(Settings(torch=(2, 7)), driver)
    for pool in ((1, 0), (0, 0)):
        block = recorder.malloc(30 * MIB, pool=pool)
        assert block is not None
        recorder.free(block)
    recorder.release_pool((1, 0))
    recorder.empty_cache()
    recorder.malloc(60 * MIB)
    recorder.malloc(40 * MIB)
    events = [event._replace(pool=(0, 0)) for event in recorder.trace]
    first, second = doubts(read_run(events, recorder.heap(), driver))
    assert "(flush or empty_cache: 1, flush or request in a private pool: 1)" in first
    assert "the number of retries can be off by 2." in first
    assert second.startswith("2 segments were released before the snapshot")
