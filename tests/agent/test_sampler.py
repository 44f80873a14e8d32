"""What is read and recorded when, what it costs, and what the sample contains."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_source import HandClock, RecordingSource, ScriptedSource
from gpufrag.agent import sampler as sampler_module
from gpufrag.agent.sampler import Sampler, driver_at
from gpufrag.agent.settings import AgentSettings
from gpufrag.agent.sources import DeviceReading
from gpufrag.agent.step_recorder import (
    HISTORY_IN_USE,
    INCONSISTENT,
    INTERRUPTED,
    LONGEST_STEP,
    RECORDED,
    SLICE,
    TOO_LONG,
    TOO_MANY_EVENTS,
)
from gpufrag.mixin.config import Timing
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import INACTIVE, Heap, Segment
from gpufrag.model.settings import MIB
from gpufrag.model.step import StepEvents, read_step
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.folder import HEAP_SUFFIX, RECORDING_SUFFIX
from gpufrag.wire.measuring import SHORTEST_WINDOW, WINDOWS_KEPT, WINDOWS_KEPT_ALONE, current
from gpufrag.wire.recording import decode
from gpufrag.wire.sample import DeviceSample, DriverReading, Identity, PoolTotals, ProcessSample, Snapshot, Totals
from signal_handlers import handled
from simulated_trace import Recorder

IDENTITY = Identity("host", 1, 1.0)
NOW = 1e9


@pytest.fixture
def sampler(source: ScriptedSource, clock: HandClock, errors: ErrorCounter) -> Sampler:
    return Sampler(source, AgentSettings(), errors, clock.clocks)


@pytest.fixture
def recording() -> RecordingSource:
    return RecordingSource()


@pytest.fixture
def recorded(recording: RecordingSource, clock: HandClock, errors: ErrorCounter) -> Sampler:
    """The sampler of a source that records events, and whose steps it watches."""
    found = Sampler(recording, AgentSettings(), errors, clock.clocks)
    watched(found)
    return found


def watched(sampler: Sampler) -> Callable[[], int]:
    """How often the agent's thread was woken."""
    woken: list[None] = []
    sampler.watch_steps(lambda: woken.append(None))
    return lambda: len(woken)


def sample_of(sampler: Sampler) -> ProcessSample:
    """With what the sidecar would measure."""
    sampler.read()
    sampler.digest()
    return sampler.measured(sampler.sample(IDENTITY))


def device_of(sampler: Sampler) -> DeviceSample:
    (device,) = sample_of(sampler).devices
    return device


def moments(sampler: Sampler) -> list[str]:
    return [snapshot.at for snapshot in device_of(sampler).snapshots]


def results(sampler: Sampler) -> dict[str, int]:
    return dict(sample_of(sampler).health.recordings)


def next_window(sampler: Sampler) -> float:
    now = 1_000_000.0
    while not sampler.schedule.at_step(now):
        now += 1.0
    return now


# --- steps and recordings


def test_boundary_is_copied_at_once_and_measured_later(sampler, source) -> None:
    woken = watched(sampler)
    source.step()
    assert (source.captures, woken()) == (1, 1)
    assert sampler.sample(IDENTITY).devices == ()
    (snapshot,) = device_of(sampler).snapshots
    assert snapshot.at == "boundary"
    assert snapshot.measured == measure(source.heap, Driver(source.free, source.size, source.size // 2))


def test_recording_lasts_from_boundary_to_boundary(recorded, recording, clock) -> None:
    recording.step()
    assert (recording.calls, recording.captures) == (["start"], 0)
    clock.tick(0.1)
    recording.step()
    assert recording.calls == ["start", "read"]
    assert moments(recorded) == ["boundary", "peak"]
    assert results(recorded) == {RECORDED: 1}


def test_each_window_has_one_recording(recorded, recording, clock) -> None:
    for _ in range(400):
        recording.step()
        recorded.at_timer()
        recorded.digest()
        clock.tick(0.1)
    assert recording.calls == ["start", "read"] * 4
    assert recording.captures == 4


def recorded_program(recording: RecordingSource) -> None:
    """Two boundaries around a step that holds 70 MiB at its peak and 10 MiB at its end."""
    program = Recorder()
    _, large = program.malloc(10 * MIB), program.malloc(60 * MIB)
    program.free(large)
    rows = [(event.action, event.address or 0, event.size, event.stream) for event in program.trace]
    recording.events, recording.heap = StepEvents(*map(list, zip(*rows))), program.heap()
    recording.step()
    recording.step()


def test_peak_of_the_recorded_step_is_published(recorded, recording) -> None:
    recorded_program(recording)
    device = device_of(recorded)
    active = {shot.at: shot.measured.large.active + shot.measured.small.active for shot in device.snapshots}
    assert active == {"boundary": 10 * MIB, "peak": 70 * MIB}
    assert device.largest_recurring == 60 * MIB


def test_recorded_step_is_taken_once_for_the_sidecar(recorded, recording) -> None:
    recorded_program(recording)
    recorded.digest()
    (device,) = decode(recorded.take_files()[RECORDING_SUFFIX]).devices
    assert (device.heap, device.driver.limit) == (recording.heap, recording.size // 2)
    assert read_step(device.events, device.heap).peak_active == 70 * MIB
    assert recorded.take_files() == {}


def test_snapshot_replaces_no_step_that_is_not_measured(recorded, recording, clock) -> None:
    recorded_program(recording)
    recorded.digest()
    clock.tick(1.0)
    recorded.take("boundary")
    recorded.digest()
    assert [snapshot.time - clock.now for snapshot in device_of(recorded).snapshots] == [0.0, -1.0]
    assert device_of(recorded).largest_recurring == 60 * MIB
    files = recorded.take_files()
    assert {suffix: decode(file).devices[0].events is None for suffix, file in files.items()} == {
        RECORDING_SUFFIX: False,
        HEAP_SUFFIX: True,
    }


def test_training_process_measures_nothing_on_its_own(recorded, recording) -> None:
    recorded_program(recording)
    recorded.read()
    recorded.digest()
    (device,) = recorded.sample(IDENTITY).devices
    assert (device.snapshots, device.largest_recurring) == ((), None)


def test_each_recording_is_measured_once(recorded, recording, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[object] = []
    monkeypatch.setattr(sampler_module, "measure_recording", lambda found: measured.append(found) or ())
    recording.step()
    recording.step()
    for _ in range(3):
        sample_of(recorded)
    assert len(measured) == 1


def test_last_peak_is_of_the_step_recorded_last(recorded, recording) -> None:
    assert recorded.last_peak(0) is None
    recorded_program(recording)
    recorded.digest()
    found = recorded.last_peak(0)
    assert found is not None
    assert (found.at, found.measured.active) == ("peak", 70 * MIB)
    assert recorded.last_peak(1) is None


def test_largest_request_goes_with_its_peak(recorded, recording, clock) -> None:
    recorded_program(recording)
    recorded.digest()
    recording.refusal = HISTORY_IN_USE
    for _ in range(10 * (WINDOWS_KEPT + 1)):
        clock.tick(1)
        recording.step()
        recorded.digest()
    device = device_of(recorded)
    assert ([shot.at for shot in device.snapshots], device.largest_recurring) == (["boundary"], None)


UNUSABLE = {
    HISTORY_IN_USE: {"refusal": HISTORY_IN_USE},
    INTERRUPTED: {"count": None},
    INCONSISTENT: {"events": StepEvents(["alloc"], [12345], [512], [0])},
    TOO_MANY_EVENTS: {"complete": False},
}


@pytest.mark.parametrize("result", UNUSABLE)
def test_unusable_recording_leaves_a_boundary_snapshot(recorded, recording, result: str) -> None:
    vars(recording).update(UNUSABLE[result])
    recording.step()
    if result != HISTORY_IN_USE:
        recording.step()
    assert moments(recorded) == ["boundary"]
    read = {RECORDED: 1} if result == INCONSISTENT else {}
    assert results(recorded) == {**read, result: 1}


def test_endless_step_is_dropped_by_the_timer(recorded, recording, clock) -> None:
    recording.step()
    assert recorded.action_in() == pytest.approx(30)
    recorded.at_timer()
    assert recorded.recorder.underway
    clock.tick(LONGEST_STEP)
    recorded.at_timer()
    assert recording.calls == ["start", "drop"]
    assert moments(recorded) == ["timer"]
    assert results(recorded) == {TOO_LONG: 1}


def test_timer_waits_while_a_step_is_recorded(recorded, recording, clock) -> None:
    recording.step()
    clock.tick(25)
    recorded.at_timer()
    assert recording.captures == 0


def test_process_without_steps_records_slices(recorded, recording, clock) -> None:
    clock.tick(recorded.action_in())
    recorded.at_timer()
    assert (recording.calls, recorded.action_in()) == (["start"], pytest.approx(SLICE))
    clock.tick(SLICE)
    recorded.at_timer()
    assert recording.calls == ["start", "read"]
    assert moments(recorded) == ["peak", "timer"]


def test_boundary_within_a_slice_ends_it(recorded, recording, clock) -> None:
    clock.tick(10)
    recorded.at_timer()
    recording.step()
    assert recording.calls == ["start", "read"]


def test_graph_capture_is_left_alone(recorded, recording) -> None:
    recording.graph = True
    recording.step()
    assert recording.calls == []
    recording.graph = False
    recording.step()
    recording.graph = True
    recording.step()
    assert recording.calls == ["start"], "it is read at the first boundary outside the capture"
    recording.graph = False
    recording.step()
    assert recording.calls == ["start", "read"]


def test_requested_sample_leaves_the_recording_alone(recorded, recording) -> None:
    recording.step()
    recorded.take("timer")
    assert (recording.calls, recorded.recorder.underway) == (["start"], True)
    recording.step()
    assert moments(recorded) == ["boundary", "peak", "timer"]


def test_recording_ends_with_the_agent(recorded, recording) -> None:
    recording.step()
    recorded.close()
    assert not recording.underway


def test_steps_in_between_cost_nothing_but_their_count(sampler, source, clock) -> None:
    watched(sampler)
    for _ in range(50):
        source.step()
        clock.tick(0.1)
    assert source.captures == 1
    assert sample_of(sampler).steps == 50


def test_source_without_step_hook_has_no_steps(sampler, source) -> None:
    source.steps = False
    watched(sampler)
    assert sample_of(sampler).steps is None


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit, KeyboardInterrupt, MemoryError])
def test_error_at_a_boundary_is_counted_and_not_raised(sampler, source, errors, kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind

    watched(sampler)
    source.during_capture = fail
    source.step()
    source.step()
    assert errors.counts == {"step": 1}
    assert source.captures == 1, "it is not tried again at every step"


def test_signal_handlers_exception_in_a_step_is_raised(sampler, source, errors) -> None:
    def handler(number: int, frame: object) -> None:
        raise TimeoutError("the program's own")

    watched(sampler)
    source.during_capture = lambda: os.kill(os.getpid(), signal.SIGUSR1)
    with handled(signal.SIGUSR1, handler), pytest.raises(TimeoutError, match="own"):
        source.step()
    assert errors.counts == {}


# --- costs


def test_boundary_snapshot_costs_the_held_program(sampler, source, clock) -> None:
    watched(sampler)
    source.during_capture = lambda: clock.tick(0.25)
    source.held, source.waited = 0.125, 0.0625
    source.step()
    assert device_of(sampler).snapshots[0].duration == 0.25
    stalls = sample_of(sampler).health.stall_seconds
    assert (stalls["snapshot"], stalls["wait"]) == (0.1875, 0.0625)


def test_timer_snapshot_costs_the_held_interpreter(sampler, source, clock) -> None:
    source.during_capture = lambda: clock.tick(0.25)
    source.held = 0.125
    sampler.take("timer")
    assert device_of(sampler).snapshots[0].duration == 0.125


@pytest.mark.parametrize(("held", "apart"), [(0.0, 10.0), (0.009, 10.0), (0.011, 20.0), (0.1, 160.0)])
def test_next_window_is_as_long_as_the_cost_requires(sampler, source, clock, held, apart) -> None:
    source.held = held
    sampler.take("timer")
    sampler.digest()
    assert next_window(sampler) == pytest.approx(clock.now // apart * apart + apart)


def test_start_of_a_recording_counts_as_cost(recorded, recording, clock) -> None:
    start = recording.start_recording
    recording.start_recording = lambda bound: (clock.tick(0.011), start(bound))[1]
    recording.step()
    recording.step()
    assert sample_of(recorded).health.stall_seconds["snapshot"] == pytest.approx(0.011)
    assert recorded.schedule.window == 20.0


def test_time_spent_in_measuring_counts_as_cost(sampler, source, clock) -> None:
    heap = source.heap

    def slow() -> Heap:
        clock.cpu += 0.015
        return heap

    captured = source.capture()
    source.capture = lambda: replace(captured, heap=slow)
    sampler.take("timer")
    sampler.digest()
    assert next_window(sampler) == 1_000_020.0
    assert sample_of(sampler).health.stall_seconds["measure"] == 0.015


def test_long_wait_makes_snapshots_and_readings_rarer(sampler, source) -> None:
    source.held = source.waited = 0.05
    sampler.take("timer")
    source.read_held = 0.02
    sampler.read()
    sampler.digest()
    assert next_window(sampler) >= 1_000_050
    assert sampler.read_in() == pytest.approx(20.0)
    assert sampler.sample(IDENTITY).health.stall_seconds["wait"] == pytest.approx(0.07)


def test_cheap_figures_are_read_every_second(sampler, source) -> None:
    assert sampler.read_in() <= 0
    source.read_held = 15e-6
    sampler.read()
    assert sampler.read_in() == 1.0
    assert sampler.sample(IDENTITY).health.stall_seconds["stats"] == 15e-6


def test_failed_reading_is_not_repeated_at_once(sampler, source) -> None:
    source.read = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        sampler.read()
    assert sampler.read_in() == 1.0


def test_history_in_use_makes_snapshots_ten_times_rarer(sampler, source) -> None:
    source.history = True
    sampler.take("timer")
    sampler.digest()
    assert next_window(sampler) == 1_000_100.0


def test_broken_heap_is_an_error_and_the_schedule_continues(sampler, source) -> None:
    captured = source.capture()
    source.capture = lambda: replace(captured, heap=lambda: 1 // 0)
    sampler.take("timer")
    with pytest.raises(ZeroDivisionError):
        sampler.digest()
    sampler.digest()
    assert next_window(sampler) == 1_000_010.0


def test_flush_of_the_allocator_opens_the_next_window(recorded, recording, clock) -> None:
    recorded.read()
    for _ in range(2):
        recording.step()
        recorded.digest()
    clock.tick(0.5)
    recording.step()
    assert recording.calls == ["start", "read"]
    recording.retries += 1
    recorded.read()
    recording.step()
    assert recording.calls == ["start", "read", "start"]


@pytest.mark.parametrize("read_before", [True, False])
def test_flush_without_a_step_is_recorded_by_the_timer(sampler, source, clock, read_before: bool) -> None:
    if read_before:
        sampler.read()
    sampler.take("timer")
    sampler.digest()
    source.retries += 1
    sampler.read()
    assert sampler.schedule.at_timer(clock.now) == read_before, "retries from before the agent are no flush"


# --- what the sample contains


def test_latest_snapshot_of_each_moment_is_kept(sampler, source, clock) -> None:
    watched(sampler)
    source.step()
    sampler.take("timer")
    clock.tick(20)
    sampler.take("timer")
    assert [(s.at, s.time) for s in device_of(sampler).snapshots] == [("boundary", 1e6), ("timer", 1e6 + 20)]


def test_old_boundary_is_dropped_next_to_fresh_snapshots(sampler, source, clock) -> None:
    """A job that has gone from training to serving, or whose last step ran out of memory."""
    watched(sampler)
    source.step()
    for _ in range(8):
        clock.tick(10)
        sampler.take("timer")
        sampler.digest()
    assert moments(sampler) == ["timer"]


def test_snapshots_of_long_steps_stay_current(recorded, recording, clock) -> None:
    for _ in range(5):
        recording.step()
        recorded.digest()
        clock.tick(60)
    recorded.take("timer")
    assert moments(recorded) == ["boundary", "peak", "timer"]


def test_device_that_is_no_longer_read_is_left_out(sampler, source) -> None:
    assert len(sample_of(sampler).devices) == 1
    source.present = False
    assert sample_of(sampler).devices == ()


def test_process_and_device_are_described(sampler, source) -> None:
    sampler.take("timer")
    sample = sample_of(sampler)
    (device,) = sample.devices
    assert (sample.identity.framework, sample.identity.framework_version) == ("scripted", "1.0")
    assert (device.uuid, device.alloc_conf, device.limit) == ("GPU-0", "conf", source.size // 2)
    assert sample.health.stall_seconds.keys() == {"snapshot", "stats", "wait", "measure"}


@given(copied=st.integers(0, 100), at_reading=st.integers(0, 100), free=st.integers(0, 200))
def test_driver_is_as_it_was_at_the_copy(copied: int, at_reading: int, free: int) -> None:
    """reserved + free stays the same, as far as the device has room for it."""
    totals = Totals(1.0, PoolTotals(0, 0, 0, at_reading, 0), PoolTotals(0, 0, 0, 0, 0), 0, 0)
    reading = DeviceReading(0, totals, DriverReading(1.0, free, 200))
    segment = Segment(0, 0, 0, False, (0, 0), False, (copied,), (0,), (INACTIVE,))
    driver = driver_at(Heap((segment,) if copied else ()), reading, None)
    assert driver.free == min(200, max(0, free + at_reading - copied))


# --- which snapshots are current


def shots(**ages: float) -> list[Snapshot]:
    """One of each moment, with its age in seconds."""
    empty = measure(Heap(()), Driver())
    return [Snapshot(NOW - age, at, 0.0, empty) for at, age in ages.items()]


@pytest.mark.parametrize(
    ("ages", "window", "kept"),
    [
        ({"peak": 15, "boundary": 5, "timer": 0}, 10.0, ["boundary", "peak", "timer"]),
        ({"boundary": 10 * WINDOWS_KEPT + 1, "timer": 0}, 10.0, ["timer"]),
        ({"boundary": 10 * WINDOWS_KEPT_ALONE - 1}, 10.0, ["boundary"]),
        ({"boundary": 10 * WINDOWS_KEPT_ALONE + 1}, 10.0, []),
        ({"boundary": 500, "timer": 0}, 160.0, ["boundary", "timer"]),
        ({"boundary": 50, "timer": 0}, 0.05, ["boundary", "timer"]),
    ],
)
def test_snapshot_is_current_for_some_windows(ages: dict[str, float], window: float, kept: list[str]) -> None:
    assert [snapshot.at for snapshot in current(shots(**ages), NOW, window)] == kept


def test_single_snapshot_cannot_trigger_a_restart() -> None:
    assert WINDOWS_KEPT_ALONE * SHORTEST_WINDOW + Timing().window < Timing().hold


@given(st.lists(st.floats(-100, 1000), max_size=3), st.floats(0.01, 1000))
def test_only_old_snapshots_are_dropped(ages: list[float], window: float) -> None:
    found = shots(**dict(zip(("boundary", "peak", "timer"), ages)))
    kept = current(found, NOW, window)
    assert all(snapshot in kept for snapshot in found if NOW - snapshot.time <= WINDOWS_KEPT * window)
    assert not kept or max(found, key=lambda snapshot: snapshot.time) in kept
