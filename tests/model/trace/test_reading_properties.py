"""A trace from the simulator is read back as its program, whatever happens at the limit."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import AWAITING
from gpufrag.model.settings import INTERVALS, Settings
from gpufrag.model.simulator.addresses import AddressSpace
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.simulator.blocks import Block
from gpufrag.model.trace.events import GROWS, SHRINKS, Event
from gpufrag.model.trace.program import Replay
from gpufrag.model.trace.reading import places, read_program
from simulated_trace import Recorder
from strategies import REQUESTS

MIB = 1 << 20


class Step(NamedTuple):
    action: str
    size: int
    stream: int
    pool: tuple[int, int]
    pick: int


STEPS = st.builds(
    Step,
    st.sampled_from(["malloc"] * 6 + ["free"] * 3 + ["share", "finish", "empty_cache"]),
    REQUESTS,
    st.sampled_from([0, 0, 0, 7]),
    st.sampled_from([(0, 0)] * 5 + [(0, 1)]),
    st.integers(0, 1000),
)
PLAIN = st.builds(
    Settings,
    max_split_size=st.sampled_from([None, 40 * MIB, 64 * MIB]),
    max_non_split_rounding=st.sampled_from([20 * MIB, 40 * MIB]),
    roundup_power2_divisions=st.sampled_from([(0,) * INTERVALS, (4,) * INTERVALS]),
    garbage_collection_threshold=st.sampled_from([0.0, 0.5]),
)
SETTINGS = PLAIN | st.builds(Settings, expandable_segments=st.just(True))
LIMITS = st.sampled_from([None, 120 * MIB, 300 * MIB])


def record(steps: list[Step], settings: Settings, limit: int | None) -> Recorder:
    recorder = Recorder(settings, Driver(limit=limit), marked=True)
    live: list[Block] = []
    waiting: list[Block] = []
    for step in steps:
        if step.action == "malloc":
            block = recorder.malloc(step.size, step.stream, step.pool)
            live += [] if block is None else [block]
        elif step.action == "empty_cache":
            recorder.empty_cache()
        elif step.action == "finish" and waiting:
            block = waiting.pop(step.pick % len(waiting))
            if block.state is AWAITING:
                recorder.finish(block)
        elif step.action != "finish" and live:
            block = live.pop(step.pick % len(live))
            block.shared = step.action == "share"
            waiting += [block] if block.shared else []
            recorder.free(block)
    return recorder


def segments_of(events: list[Event]) -> list[Event]:
    return [event for event in events if event.action in GROWS | SHRINKS]


@given(st.lists(STEPS, max_size=80), SETTINGS, LIMITS)
def test_program_of_a_trace_repeats_the_trace(steps: list[Step], settings: Settings, limit: int | None) -> None:
    recorded = record(steps, settings, limit)
    again: list[Event] = []
    spaces = [AddressSpace(places(recorded.trace)) for _ in range(2)]
    program = read_program(recorded.trace, allocator=Allocator(settings, Driver(limit=limit), spaces[0]))
    replayed = Allocator(settings, Driver(limit=limit), spaces[1], again.append)
    Replay(program, replayed).run()
    assert again == segments_of(recorded.trace)
    assert replayed.counters == recorded.counters
    assert replayed.heap() == recorded.heap()
    assert replayed.peak_active == recorded.peak_active
    assert program.inferred == 0 or limit is not None
