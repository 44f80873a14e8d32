"""Boundary and peak take turns, chance steps in, a flushed allocator is looked at soon, old moments go."""

from __future__ import annotations

import pytest

from fake_source import FollowedSource, HandClock, ScriptedSource
from gpufrag.agent.peak import FALL, TIMER
from gpufrag.agent.peaks import STUDIES
from gpufrag.agent.sampler import Sampler
from gpufrag.agent.settings import AgentSettings
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import Identity, ProcessSample

IDENTITY = Identity("host", 1, 1.0)
FLAT = (1000,)


class Loop:
    """A training loop of a step every quarter of a second, with the agent's turns in between; notes each snapshot."""

    def __init__(self, source: FollowedSource, clock: HandClock) -> None:
        self.source, self.clock = source, clock
        self.sampler = Sampler(source, AgentSettings(), ErrorCounter(), clock.clocks)
        self.sampler.watch_steps(lambda: None)
        self.sampler.read()
        self.taken: list[str] = []
        self._take, self.sampler.take = self.sampler.take, self._noted  # type: ignore[method-assign]

    def run(self, seconds: float) -> list[str]:
        """At which moments there were snapshots meanwhile."""
        before, end = len(self.taken), self.clock.now + seconds
        while self.clock.now < end:
            if self.sampler.read_in() <= 0:
                self.sampler.read()
            self.source.step()
            self.sampler.follow(lambda: self.source.place > 40, self.clock.tick)
            if not self.sampler.following and self.sampler.schedule.at_timer(self.clock.now):
                self.sampler.take("timer")
            self.sampler.digest()
            self.clock.tick(0.25)
        return self.taken[before:]

    def sample(self) -> ProcessSample:
        self.sampler.read()
        self.sampler.digest()
        return self.sampler.sample(IDENTITY)

    def moments(self) -> list[str]:
        (device,) = self.sample().devices
        return [snapshot.at for snapshot in device.snapshots]

    def _noted(self, at: str) -> None:
        self.taken.append(at)
        self._take(at)


@pytest.fixture
def source() -> FollowedSource:
    return FollowedSource()


@pytest.fixture
def loop(source: FollowedSource, clock: HandClock) -> Loop:
    return Loop(source, clock)


def test_boundary_and_peak_take_turns(loop: Loop) -> None:
    assert loop.run(60) == ["boundary", "peak"] * 3
    assert loop.moments() == ["boundary", "peak"]


def test_how_the_peak_is_told_is_said(loop: Loop) -> None:
    assert loop.sample().peak_method == TIMER
    loop.run(20)
    assert loop.sample().peak_method not in (None, TIMER)


def test_where_memory_stands_still_every_other_snapshot_comes_by_chance(loop: Loop, source: FollowedSource) -> None:
    source.curve = FLAT
    taken = loop.run(120)
    assert "peak" not in taken[2:]
    assert {"boundary", "timer"} <= set(taken)
    assert loop.sample().peak_method == TIMER
    assert loop.moments() == ["boundary", "timer"]


def test_following_is_a_stall(loop: Loop, source: FollowedSource, clock: HandClock) -> None:
    level = source.level
    source.level = lambda device: (clock.tick(0.0009), level(device))[1]  # type: ignore[method-assign]
    loop.run(40)
    assert loop.sample().health.stall_seconds["stats"] >= STUDIES * 0.0009


def test_what_following_cost_makes_the_next_window_longer(loop: Loop) -> None:
    loop.sampler._owe("stats", 0.011)  # above what a window of ten seconds may cost
    loop.sampler.take("peak")
    loop.sampler.digest()
    assert loop.sampler.schedule.window == 20.0
    loop.sampler.take("boundary")
    loop.sampler.digest()
    assert loop.sampler.schedule.window == 10.0


def test_a_reading_that_waits_for_the_allocator_ends_the_search(loop: Loop, source: FollowedSource, clock) -> None:
    level = source.level
    source.level = lambda device: (clock.tick(0.05), level(device))[1]  # type: ignore[method-assign]
    assert "peak" not in loop.run(60)
    assert loop.sample().health.stall_seconds["wait"] >= 0.05


def test_a_flush_of_the_allocator_brings_the_next_snapshot_forward(loop: Loop, source: FollowedSource) -> None:
    loop.run(13)
    assert loop.run(2) == []
    source.retries += 1
    loop.sampler.read()
    assert loop.run(3) == ["peak"]


def test_a_flush_without_a_step_is_looked_at_by_the_timer(source: FollowedSource, clock: HandClock) -> None:
    sampler = Sampler(source, AgentSettings(), ErrorCounter(), clock.clocks)
    sampler.read()
    sampler.take("timer")
    sampler.digest()
    source.retries += 1
    sampler.read()
    assert sampler.schedule.at_timer(clock.now)


def test_retries_from_before_the_agent_are_no_news(source: FollowedSource, clock: HandClock) -> None:
    source.retries = 5
    sampler = Sampler(source, AgentSettings(), ErrorCounter(), clock.clocks)
    sampler.take("timer")
    sampler.digest()
    sampler.read()
    assert not sampler.schedule.at_timer(clock.now)


def test_an_old_boundary_does_not_stay_beside_fresh_snapshots(loop: Loop, clock: HandClock) -> None:
    """A job that has gone from training to serving, or whose last step ran out of memory."""
    loop.run(1)
    for _ in range(8):
        clock.tick(10)
        loop.sampler.take("timer")
        loop.sampler.digest()
    assert loop.moments() == ["timer"]


def test_where_steps_are_long_moments_stay_as_long_as_it_takes_to_renew_them(loop: Loop, clock: HandClock) -> None:
    loop.source.step()
    loop.sampler.digest()
    clock.tick(60)
    loop.source.step()
    clock.tick(60)
    loop.sampler.take("timer")
    assert loop.moments() == ["boundary", "timer"]


def test_a_source_that_cannot_be_followed_says_nothing_of_peaks(clock: HandClock) -> None:
    sampler = Sampler(ScriptedSource(), AgentSettings(), ErrorCounter(), clock.clocks)
    assert sampler.sample(IDENTITY).peak_method is None


def test_the_first_peaks_are_found_by_the_first_fall_or_better(loop: Loop) -> None:
    loop.source.curve = (100, 500, 1000, 700, 100)
    loop.run(20)
    assert loop.sample().peak_method in (FALL, "level", "phase")
