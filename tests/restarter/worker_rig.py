"""A worker on a backend in memory, with a clock that a test moves."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gpufrag.restarter import metrics, server
from gpufrag.restarter.alerts import Alert
from gpufrag.restarter.checkpoint import Checkpointer, NoCheckpointer
from gpufrag.restarter.clock import Clock
from gpufrag.restarter.defragment import Defragmenter
from gpufrag.restarter.reasons import Refused
from gpufrag.restarter.settings import PolicySettings, RestarterConfig
from restarter.memory_backend import Killed, MemoryBackend

START_S = 1_800_000_000.0
LIVE = PolicySettings(dry_run=False)
MAX_TURNS = 600


@dataclass
class FakeTime:
    wall_s: float = START_S
    steady_s: float = 100.0

    def move(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


def alert(pod: str = "train-1", **changes: Any) -> Alert:
    labels = {"alertname": "GpuMemoryFragmented", "gpufrag_action": "restart", "namespace": "ml", "pod": pod}
    made = Alert("firing", labels, {"description": "Job train: a ratio of 9."}, "cafe", START_S - 400)
    return replace(made, **changes)


@dataclass
class Rig:
    """`again` returns another restarter on the same backend and clock."""

    policy: PolicySettings = LIVE
    backend: MemoryBackend = field(default_factory=MemoryBackend)
    time: FakeTime = field(default_factory=FakeTime)
    checkpointer: Checkpointer = field(default_factory=NoCheckpointer)
    config: RestarterConfig = field(default_factory=RestarterConfig)
    defragmenter: Defragmenter | None = None
    recheck: Callable[[Alert], Refused | None] | None = None
    """Replaces Prometheus."""

    def __post_init__(self) -> None:
        self.stream = io.StringIO()
        clock = Clock(lambda: self.time.wall_s, lambda: self.time.steady_s)
        platform = server.Platform(
            self.backend, self.backend, self.checkpointer, self.backend.notify, self.defragmenter
        )
        parts = server.assemble(replace(self.config, policy=self.policy), platform, clock, self.stream)
        self.worker, self.metrics, self.webhook = parts.worker, parts.metrics, parts.webhook
        if self.recheck is not None:
            self.worker.recheck = self.recheck

    def again(self) -> Rig:
        return replace(self)

    def send(self, *alerts: Alert) -> Rig:
        assert self.worker.offer(alerts or (alert(self.backend.job.pod_name),))
        return self

    def turn(self, seconds: float | None = None) -> None:
        """Do one turn of the worker, and let the time pass that it asks for, at most 10 s."""
        wait = self.worker.turn()
        passed = max(0.01, min(wait, 10.0) if seconds is None else seconds)
        self.time.move(passed)
        if passed >= 0.5:
            self.backend.settle()

    def go(self) -> Rig:
        """Run until no restart is in progress and the queue is empty."""
        for _ in range(MAX_TURNS):
            self.turn()
            if not self.metrics.value(metrics.IN_PROGRESS) and not self.metrics.value(metrics.QUEUE):
                return self
        raise AssertionError(f"it never ends: {self.outcomes}")

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
