"""Fake training steps under a sampler, with a clock that only the test moves."""

from __future__ import annotations

from dataclasses import dataclass, field

from fake_source import HandClock, LiveSource
from gpufrag.agent.sampler import Sampler
from gpufrag.agent.settings import AgentSettings
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import Identity, Leak

IDENTITY = Identity("host", 1, 1.0)
MB = 1_000_000


@dataclass
class Job:
    source: LiveSource
    sampler: Sampler
    clock: HandClock
    woken: list[int] = field(default_factory=list)

    def steps(self, count: int, kept: int = 0, length: float = 0.1) -> None:
        for _ in range(count):
            self.clock.tick(length)
            self.source.keep(kept) if kept else None
            self.source.step()

    def leak(self) -> Leak | None:
        self.sampler.read()
        self.sampler.digest()
        (device,) = self.sampler.sample(IDENTITY).devices
        return device.leak


def job(clock: HandClock, threshold: int = MB, **scripted: object) -> Job:
    source = LiveSource(clock=clock, **scripted)  # type: ignore[arg-type]
    sampler = Sampler(source, AgentSettings(leak_threshold=threshold), ErrorCounter(), clock.clocks)
    made = Job(source, sampler, clock)
    sampler.watch_steps(lambda: made.woken.append(source.lives))
    sampler.read()
    return made
