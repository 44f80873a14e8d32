"""What is read when, what it costs, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.agent.driver_then import driver_at
from gpufrag.agent.sampler import Sampler
from gpufrag.agent.settings import AgentSettings
from gpufrag.agent.sources import DeviceReading
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import INACTIVE, Heap
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import DeviceSample, DriverReading, Identity, PoolTotals, ProcessSample, Totals

IDENTITY = Identity("host", 1, 1.0)
WOKEN: list[str] = []


@pytest.fixture
def sampler(source, clock) -> Sampler:
    return Sampler(source, AgentSettings(), ErrorCounter(), clock.clocks)


def _watched(sampler: Sampler) -> Callable[[], int]:
    """How often the agent's thread was woken."""
    woken: list[None] = []
    sampler.watch_steps(lambda: woken.append(None))
    return lambda: len(woken)


def _sample(sampler: Sampler) -> ProcessSample:
    sampler.read()
    sampler.digest()
    return sampler.sample(IDENTITY)


def _device(sampler: Sampler) -> DeviceSample:
    (device,) = _sample(sampler).devices
    return device


def test_a_step_boundary_is_sampled_in_the_trainers_thread_and_measured_later(sampler, source) -> None:
    woken = _watched(sampler)
    source.step()
    assert (source.captures, woken()) == (1, 1)
    assert sampler.sample(IDENTITY).devices == ()
    (snapshot,) = _device(sampler).snapshots
    assert snapshot.at == "boundary"
    assert snapshot.measured == measure(source.heap, Driver(source.free, source.size, source.size // 2))


def test_steps_in_between_cost_nothing_but_their_count(sampler, source, clock) -> None:
    _watched(sampler)
    for _ in range(50):
        source.step()
        clock.tick(0.1)
    assert source.captures == 1
    assert _sample(sampler).steps == 50


def test_without_a_step_hook_there_are_no_steps(source, clock) -> None:
    source.steps = False
    sampler = Sampler(source, AgentSettings(), ErrorCounter(), clock.clocks)
    _watched(sampler)
    assert _sample(sampler).steps is None


def test_a_graph_capture_is_left_alone_and_the_next_boundary_is_taken(sampler, source) -> None:
    _watched(sampler)
    source.graph = True
    source.step()
    assert source.captures == 0
    source.graph = False
    source.step()
    assert source.captures == 1


def test_an_error_at_a_boundary_is_counted_and_does_not_reach_the_trainer(source, clock) -> None:
    trouble = ErrorCounter()
    sampler = Sampler(source, AgentSettings(), trouble, clock.clocks)
    _watched(sampler)
    source.during_capture = lambda: 1 // 0
    source.step()
    assert trouble.counts == {"step": 1}
    source.step()
    assert source.captures == 1, "it is not tried again at every step"


def test_the_latest_snapshot_of_each_moment_is_kept(sampler, source, clock) -> None:
    _watched(sampler)
    source.step()
    sampler.take("timer")
    clock.tick(20)
    sampler.take("timer")
    assert [(s.at, s.time) for s in _device(sampler).snapshots] == [("boundary", 1e6), ("timer", 1e6 + 20)]


def test_a_snapshot_at_a_boundary_lasts_as_long_as_the_trainer_was_held(sampler, source, clock) -> None:
    _watched(sampler)
    source.during_capture = lambda: clock.tick(0.25)
    source.held, source.waited = 0.125, 0.0625
    source.step()
    assert _device(sampler).snapshots[0].duration == 0.25
    stalls = _sample(sampler).health.stall_seconds
    assert (stalls["snapshot"], stalls["wait"]) == (0.1875, 0.0625)


def test_a_snapshot_by_the_timer_lasts_as_long_as_the_interpreter_was_held(sampler, source, clock) -> None:
    source.during_capture = lambda: clock.tick(0.25)
    source.held = 0.125
    sampler.take("timer")
    assert _device(sampler).snapshots[0].duration == 0.125


@pytest.mark.parametrize(("held", "apart"), [(0.0, 10.0), (0.009, 10.0), (0.011, 20.0), (0.1, 160.0)])
def test_the_next_snapshot_waits_for_as_long_as_this_one_was_dear(sampler, source, clock, held, apart) -> None:
    source.held = held
    sampler.take("timer")
    sampler.digest()
    assert _next_snapshot(sampler) == pytest.approx(clock.now // apart * apart + apart)


def _next_snapshot(sampler: Sampler) -> float:
    """By a boundary: when the window opens."""
    now = 1_000_000.0
    while not sampler.schedule.at_step(now):
        now += 1.0
    return now


def test_time_spent_in_measuring_counts_as_cost(sampler, source, clock) -> None:
    heap = source.heap

    def slow() -> Heap:
        clock.cpu += 0.015
        return heap

    captured = source.capture()
    source.capture = lambda: replace(captured, heap=slow)
    sampler.take("timer")
    sampler.digest()
    assert _next_snapshot(sampler) == 1_000_020.0
    assert _sample(sampler).health.stall_seconds["measure"] == 0.015


def test_a_long_wait_makes_snapshots_and_readings_rarer(sampler, source, clock) -> None:
    source.held = source.waited = 0.05
    sampler.take("timer")
    source.read_held = 0.02
    sampler.read()
    sampler.digest()
    assert _next_snapshot(sampler) >= 1_000_050
    assert sampler.read_in() == pytest.approx(20.0)
    assert sampler.sample(IDENTITY).health.stall_seconds["wait"] == pytest.approx(0.07)


def test_the_cheap_figures_come_every_second(sampler, source, clock) -> None:
    assert sampler.read_in() <= 0
    source.read_held = 15e-6
    sampler.read()
    assert sampler.read_in() == 1.0
    assert sampler.sample(IDENTITY).health.stall_seconds["stats"] == 15e-6


def test_a_reading_that_fails_is_not_tried_again_at_once(sampler, source) -> None:
    source.read = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        sampler.read()
    assert sampler.read_in() == 1.0


def test_while_history_is_recorded_snapshots_are_ten_times_rarer(sampler, source) -> None:
    source.history = True
    sampler.take("timer")
    sampler.digest()
    assert _next_snapshot(sampler) == 1_000_100.0


def test_a_broken_heap_is_an_error_and_the_schedule_goes_on(sampler, source, clock) -> None:
    captured = source.capture()
    source.capture = lambda: replace(captured, heap=lambda: 1 // 0)
    sampler.take("timer")
    with pytest.raises(ZeroDivisionError):
        sampler.digest()
    sampler.digest()
    assert _next_snapshot(sampler) == 1_000_010.0


def test_a_device_that_has_gone_is_left_out(sampler, source) -> None:
    assert len(_sample(sampler).devices) == 1
    source.present = False
    assert _sample(sampler).devices == ()


def test_a_request_that_comes_and_goes_is_told(sampler, source, clock) -> None:
    whole = source.heap
    sampler.take("timer")
    assert _device(sampler).largest_recurring is None
    source.heap = Heap(tuple(s._replace(states=(INACTIVE,) * len(s.states)) for s in whole.segments), whole.settings)
    clock.tick(10)
    sampler.take("timer")
    live = [b.requested for s in whole.segments if not s.small for b in s.blocks() if b.state == "active_allocated"]
    assert _device(sampler).largest_recurring == max(live)


def test_what_is_known_about_process_and_device_is_said(sampler, source) -> None:
    sampler.take("timer")
    sample = _sample(sampler)
    (device,) = sample.devices
    assert (sample.identity.framework, sample.identity.framework_version) == ("scripted", "1.0")
    assert (device.uuid, device.alloc_conf, device.limit) == ("GPU-0", "conf", source.size // 2)
    assert sample.health.stall_seconds.keys() == {"snapshot", "stats", "wait", "measure"}


@given(copied=st.integers(0, 100), at_reading=st.integers(0, 100), free=st.integers(0, 200))
def test_what_the_process_took_after_the_copy_is_given_back_to_the_driver(
    copied: int, at_reading: int, free: int
) -> None:
    """reserved + free stays what it was, as far as a device has room for it."""
    totals = Totals(1.0, PoolTotals(0, 0, 0, at_reading, 0), PoolTotals(0, 0, 0, 0, 0), 0, 0)
    reading = DeviceReading(0, totals, DriverReading(1.0, free, 200))
    driver = driver_at(_reserving(copied), reading, None)
    assert driver.free == min(200, max(0, free + at_reading - copied))


def _reserving(size: int) -> Heap:
    from gpufrag.model.heap import Segment

    segment = Segment(0, 0, 0, False, (0, 0), False, (size,), (0,), (INACTIVE,))
    return Heap((segment,) if size else ())
