"""A restarter with a clock that a test moves, on any backend, and on one in memory."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gpufrag.restarter import metrics, server
from gpufrag.restarter.alerts import Alert
from gpufrag.restarter.backend import Away
from gpufrag.restarter.checkpoint import Checkpointer, NoCheckpointer
from gpufrag.restarter.clock import Clock
from gpufrag.restarter.defragment import Defragmenter
from gpufrag.restarter.reasons import Refused
from gpufrag.restarter.settings import PolicySettings, RestarterConfig
from restarter.memory_backend import Killed, MemoryBackend, no_fault

START_S = 1_800_000_000.0
LIVE = PolicySettings(dry_run=False, namespaces=("ml",))
MAX_TURNS = 600
T = TypeVar("T")


def alert(pod: str = "train-1", namespace: str = "ml", **changes: Any) -> Alert:
    labels = {"alertname": "GpuMemoryFragmented", "gpufrag_action": "restart", "namespace": namespace, "pod": pod}
    made = Alert("firing", labels, {"description": "Job train: a ratio of 9."}, "cafe", START_S - 400)
    return replace(made, **changes)


def job_alert(job_name: str) -> Alert:
    """An alert about a job that has no pods."""
    labels = {"alertname": "GpuMemoryFragmented", "gpufrag_action": "restart", "job": "gpufrag", "job_name": job_name}
    return alert(labels=labels)


def finish(steps: Generator[float, None, T], meanwhile: Callable[[], object] = lambda: None) -> T:
    """Return the result of a generator that yields its waits. `meanwhile` is called in each of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        meanwhile()


@dataclass
class FakeTime:
    wall_s: float = START_S
    steady_s: float = 100.0

    def move(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.wall_s, lambda: self.steady_s)


class TimedRestarter:
    def __init__(self, platform: server.Platform, time: FakeTime, config: RestarterConfig) -> None:
        self.time, self.stream = time, io.StringIO()
        parts = server.assemble(config, platform, time.clock, self.stream)
        self.worker, self.metrics, self.webhook = parts.worker, parts.metrics, parts.webhook

    def send(self, *alerts: Alert) -> Any:
        assert self.worker.offer(alerts)
        return self

    def turn(self, seconds: float | None = None) -> float:
        """Do one turn of the worker, and let the time pass that it asks for, at most 10 s."""
        wait = self.worker.turn()
        passed = max(0.01, min(wait, 10.0) if seconds is None else seconds)
        self.time.move(passed)
        return passed

    def until(self, condition: Callable[[], object]) -> Any:
        for _ in range(MAX_TURNS):
            if condition():
                return self
            self.turn()
        raise AssertionError(f"it never happens: {self.outcomes}")

    def go(self) -> Any:
        """Run until no restart is in progress and the queue is empty."""
        self.turn()
        return self.until(self.idle)

    def idle(self) -> bool:
        return not any(map(self.metrics.value, (metrics.IN_PROGRESS, metrics.QUEUE)))

    def go_until_killed(self) -> bool:
        """Return whether it was killed before it was done."""
        try:
            self.go()
        except Killed:
            return True
        return False

    @property
    def outcomes(self) -> list[str]:
        """Outcome and reason of each decision, the oldest first."""
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [f"{line['outcome']} {line['reason']}" for line in lines]


@dataclass
class Rig(TimedRestarter):
    """On a backend in memory. `again` returns another restarter on the same backend and clock."""

    policy: PolicySettings = LIVE
    backend: MemoryBackend = field(default_factory=MemoryBackend)
    time: FakeTime = field(default_factory=FakeTime)
    checkpointer: Checkpointer = field(default_factory=NoCheckpointer)
    config: RestarterConfig = field(default_factory=RestarterConfig)
    defragmenter: Defragmenter | None = None
    recheck: Callable[[Alert], Refused | None] | None = None
    """Replaces Prometheus."""

    def __post_init__(self) -> None:
        notify = self.backend.notify
        platform = server.Platform(self.backend, self.backend, self.checkpointer, notify, self.defragmenter)
        super().__init__(platform, self.time, replace(self.config, policy=self.policy))
        self.worker.recheck = self.recheck or self.worker.recheck

    def again(self) -> Rig:
        return replace(self)

    def send(self, *alerts: Alert) -> Rig:
        return super().send(*alerts or (alert(self.backend.job.pod_name),))

    def turn(self, seconds: float | None = None) -> float:
        passed = super().turn(seconds)
        if passed >= 0.5:
            self.backend.settle()
        return passed

    def fail(self, *names: str, error: Exception | None = None, seconds: float = math.inf) -> Rig:
        """Let calls fail for a while: those of these names, or all."""
        ends_s = self.time.steady_s + seconds

        def fault(number: int, name: str, done: bool) -> None:
            if self.time.steady_s < ends_s and (not names or name in names):
                raise error or Away("503")

        self.backend.fault = fault
        return self

    def heal(self) -> Rig:
        self.backend.fault = no_fault
        return self
