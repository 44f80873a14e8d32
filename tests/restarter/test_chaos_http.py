"""The whole restarter on the fake API server over real HTTP: killed at every call, cut off at every call, kept waiting.

However it goes, a job is never left suspended, never restarted twice for one alert, and no failure of its own counts.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gpufrag.restarter import server
from gpufrag.restarter.alerts import Alert
from gpufrag.restarter.clock import Clock
from gpufrag.restarter.kubernetes.cluster import PHASE
from gpufrag.restarter.metrics import IN_PROGRESS, QUEUE
from gpufrag.restarter.settings import PolicySettings, RestarterConfig
from restarter.fake_api import manifests
from restarter.fake_api.faults import CUT, CUT_AFTER, Fault
from restarter.fake_api.served import of
from restarter.fake_api.world import SETTLE
from restarter.restarting import Scene, scene

START_S = 1_800_000_000.0
CONFIG = RestarterConfig(policy=PolicySettings(dry_run=False, namespaces=("ml",)))
TURNS = 400
Make = Callable[..., dict[str, Any]]


class Killed(BaseException):
    """The process ends here; nothing that catches errors may catch it."""


@dataclass
class KilledAfter:
    """A cluster whose caller dies once the call of this number is done."""

    cluster: Any
    number: int
    calls: int = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.cluster, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            answer = method(*arguments, **named)
            if self.calls == self.number:
                raise Killed
            return answer

        return call


class Receiver:
    """One process of the restarter, with a clock that moves as it asks for."""

    def __init__(self, it: Scene, cluster: Any, since_s: float = 0.0) -> None:
        self.wall_s, self.audit = START_S + since_s, io.StringIO()
        clock = Clock(lambda: self.wall_s, lambda: self.wall_s - START_S + 100)
        self._parts = server.assemble(CONFIG, cluster, "ml", None, clock, self.audit)
        self._pod, self._is_marked = it.resolved.pod.name, it.is_marked

    def alert(self) -> None:
        labels = {"alertname": "GpuMemoryFragmented", "gpufrag_action": "restart", "namespace": "ml", "pod": self._pod}
        assert self._parts.worker.offer([Alert("firing", labels, {}, "cafe", START_S - 400)])

    def turn(self) -> None:
        self.wall_s += max(0.01, min(self._parts.worker.turn(), 10.0))

    def go(self) -> None:
        """Until nothing is under way, nothing waits, and the job bears no mark of one that was."""
        for _ in range(TURNS):
            self.turn()
            if not any(map(self._parts.metrics.value, (IN_PROGRESS, QUEUE))) and not self._is_marked():
                return
        raise AssertionError(f"it never ends: {self.audit.getvalue()}")

    def until_killed(self) -> bool:
        """Whether it was killed before it was done."""
        try:
            self.go()
        except Killed:
            return True
        return False

    def told(self) -> list[str]:
        return [json.loads(line)["outcome"] for line in self.audit.getvalue().splitlines()]


def fresh(it: Scene, make: Make) -> int:
    """The job in a new world; how many pods were made for it."""
    it.again(make())
    it.api.world.store.create(of("v1", "ConfigMap"), "ml", {"metadata": {"name": "gpufrag-restarter"}})
    return it.api.world.store.pods_made


@contextlib.contextmanager
def stage(make: Make, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """The restarter knows this one kind, so that its searches are short."""
    with scene(make()) as it:
        monkeypatch.setattr(server, "TARGETS", {it.target.kind: it.target})
        yield it


def generation(it: Scene, make: Make) -> int:
    """The pods that are made for an undisturbed restart."""
    made, receiver = fresh(it, make), Receiver(it, it.cluster)
    receiver.alert()
    receiver.go()
    assert receiver.told() == ["started", "restarted"]
    it.api.world.tick(SETTLE)
    return it.api.world.store.pods_made - made


def whole(it: Scene, made: int, pods: int) -> None:
    """What must be so, whatever happened."""
    it.api.world.tick(SETTLE)
    assert it.api.world.store.pods_made - made in (0, pods)
    assert it.target.running(it.cluster, it.owner())
    assert PHASE not in it.owner().annotations
    assert not it.owner().status.get("failed")


@pytest.mark.parametrize("make", manifests.ALL, ids=lambda make: make.__name__)
def test_killed_after_every_call(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with stage(make, monkeypatch) as it:
        pods, killed, number = generation(it, make), True, 0
        while killed:
            number += 1
            made = fresh(it, make)
            first = Receiver(it, KilledAfter(it.cluster, number))
            first.alert()
            killed = first.until_killed()
            Receiver(it, it.cluster, since_s=3600.0).go()
            whole(it, made, pods)
        assert number > 10  # it was killed at so many calls


@pytest.mark.parametrize("fault", [CUT, CUT_AFTER], ids=["cut", "cut after"])
def test_each_request_fails_in_turn(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    with stage(manifests.job, monkeypatch) as it:
        pods = generation(it, manifests.job)
        for number in range(1, it.api.faults.requests + 1):
            made = fresh(it, manifests.job)
            receiver = Receiver(it, it.cluster)
            it.api.faults.at(number, fault)
            receiver.alert()
            receiver.go()
            it.api.faults.clear()
            whole(it, made, pods)
            assert it.api.world.store.pods_made - made == pods


def test_an_api_server_that_is_away_when_the_job_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    with stage(manifests.job, monkeypatch) as it:
        made = fresh(it, manifests.job)
        receiver = Receiver(it, it.cluster)
        receiver.alert()
        while not it.api.world.get("batch/v1", "Job", "train")["spec"].get("suspend"):
            receiver.turn()
        it.api.faults.always(CUT)
        for _ in range(20):
            receiver.turn()
        it.api.faults.clear()
        receiver.go()
        whole(it, made, 2)
        assert receiver.told() == ["started", "restarted"]


def test_two_receivers_and_one_alert_are_one_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    with stage(manifests.job, monkeypatch) as it:
        made = fresh(it, manifests.job)
        receivers = [Receiver(it, it.cluster) for _ in range(2)]
        for receiver in receivers:
            receiver.alert()
        for _ in range(60):
            for receiver in receivers:
                receiver.turn()
        whole(it, made, 2)
        assert it.api.world.store.pods_made - made == 2
        assert it.owner().annotations["gpufrag.dev/restart-count"] == "1"
