"""A worker on a cluster in memory, and a clock that a test moves."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field, replace
from typing import Any

from gpufrag.restarter import metrics, server
from gpufrag.restarter.alerts import Alert
from gpufrag.restarter.checkpoint import Checkpointer
from gpufrag.restarter.clock import Clock
from gpufrag.restarter.settings import PolicySettings, RestarterConfig
from restarter.memory_cluster import NAMESPACE, Killed, MemoryCluster

START_S = 1_800_000_000.0
LIVE = PolicySettings(dry_run=False, namespaces=(NAMESPACE,))
ENOUGH = 400
"""Turns; no restart takes so many."""


@dataclass
class Hands:
    """Of the clock."""

    wall_s: float = START_S
    steady_s: float = 100.0

    def move(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


def alert(pod: str = "train-1", **changes: Any) -> Alert:
    labels = {"alertname": "GpuMemoryFragmented", "gpufrag_action": "restart", "namespace": NAMESPACE, "pod": pod}
    made = Alert("firing", labels, {"description": "Job train: a ratio of 9."}, "cafe", START_S - 400)
    return replace(made, **changes)


@dataclass
class Rig:
    """`policy` is the live one unless told otherwise. `again` is another receiver on the same cluster."""

    policy: PolicySettings = LIVE
    cluster: MemoryCluster = field(default_factory=MemoryCluster)
    hands: Hands = field(default_factory=Hands)
    checkpointer: Checkpointer | None = None
    config: RestarterConfig = field(default_factory=RestarterConfig)

    def __post_init__(self) -> None:
        self.audit = io.StringIO()
        clock = Clock(lambda: self.hands.wall_s, lambda: self.hands.steady_s)
        config = replace(self.config, policy=self.policy)
        parts = server.assemble(config, self.cluster, "gpufrag", self.checkpointer, clock, self.audit)
        self.worker, self.metrics, self.webhook = parts.worker, parts.metrics, parts.webhook

    def again(self) -> Rig:
        return replace(self)

    def send(self, *alerts: Alert) -> Rig:
        assert self.worker.offer(alerts or (alert(self.cluster.job.pod_name),))
        return self

    def turn(self, seconds: float | None = None) -> None:
        """One turn of the worker, and as much time as it asks for, or less."""
        wait = self.worker.turn()
        passed = max(0.01, min(wait, 10.0) if seconds is None else seconds)
        self.hands.move(passed)
        if passed >= 1:
            self.cluster.settle()

    def go(self) -> Rig:
        """Until nothing is under way and nothing waits."""
        for _ in range(ENOUGH):
            self.turn()
            if not self.metrics.value(metrics.IN_PROGRESS) and not self.metrics.value(metrics.QUEUE):
                return self
        raise AssertionError(f"it never ends: {self.told}")

    def until_killed(self) -> bool:
        """Whether it was killed before it was done."""
        try:
            self.go()
        except Killed:
            return True
        return False

    @property
    def told(self) -> list[str]:
        """Outcome and reason of each decision, the oldest first."""
        lines = [json.loads(line) for line in self.audit.getvalue().splitlines()]
        return [f"{line['outcome']} {line['reason']}" for line in lines]

    @property
    def events(self) -> list[str]:
        return [event.reason for event in self.cluster.events]
