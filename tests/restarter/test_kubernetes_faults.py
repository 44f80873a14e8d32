"""The whole restarter on the fake API server over HTTP: killed at every call, cut off at every request, kept waiting.

Whatever happens, no job stays suspended, none is restarted twice for one alert, and no pod counts as failed.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpufrag.restarter import server
from gpufrag.restarter.backend import Stage
from gpufrag.restarter.clock import Clock
from gpufrag.restarter.kubernetes import backend
from gpufrag.restarter.kubernetes.objects import JOB
from gpufrag.restarter.kubernetes.permissions import role_rules
from gpufrag.restarter.metrics import IN_PROGRESS, QUEUE
from gpufrag.restarter.record import PHASE
from gpufrag.restarter.settings import PolicySettings, RestarterConfig
from restarter.fake_api import manifests
from restarter.fake_api.faults import CUT, CUT_AFTER, Fault
from restarter.fake_api.rbac import User
from restarter.fake_api.served import of
from restarter.fake_api.server import TOKEN
from restarter.fake_api.world import SETTLE
from restarter.scene import Scene, pod_alert, scene

START_S = 1_800_000_000.0
CONFIG = RestarterConfig(policy=PolicySettings(dry_run=False, namespaces=("ml",)))
MAX_TURNS = 500
ROLE_AND_CIRCUIT = [
    *role_rules([JOB]),
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]},
]
Make = Callable[..., dict[str, Any]]


class Killed(BaseException):
    """The process ends here."""


@dataclass
class KilledAfter:
    """A client whose process ends after its call of this number."""

    client: Any
    number: int
    calls: int = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            answer = method(*arguments, **named)
            if self.calls == self.number:
                raise Killed
            return answer

        return call


class Process:
    """One restarter, with a clock that moves as far as it asks for."""

    def __init__(self, it: Scene, client: Any = None, since_s: float = 0.0, config: RestarterConfig = CONFIG) -> None:
        self.wall_s, self.stream, self._scene = START_S + since_s, io.StringIO(), it
        clock = Clock(lambda: self.wall_s, lambda: self.wall_s - START_S + 100)
        platform = server.kubernetes_platform(config, client or it.client, "ml", clock)
        self.parts = server.assemble(config, platform, clock, self.stream)

    def send(self) -> None:
        assert self.parts.worker.offer([pod_alert(self._scene.pod.name)])

    def turn(self) -> None:
        self.wall_s += max(0.01, min(self.parts.worker.turn(), 10.0))

    def go(self) -> None:
        """Run until no restart is in progress, the queue is empty, and the job has no phase."""
        for _ in range(MAX_TURNS):
            self.turn()
            if not any(map(self.parts.metrics.value, (IN_PROGRESS, QUEUE))) and not self._has_phase():
                return
        raise AssertionError(f"it never ends: {self.stream.getvalue()}")

    def go_until_killed(self) -> bool:
        try:
            self.go()
        except Killed:
            return True
        return False

    @property
    def outcomes(self) -> list[str]:
        return [json.loads(line)["outcome"] for line in self.stream.getvalue().splitlines()]

    def _has_phase(self) -> bool:
        """Looked up without a request."""
        owner = self._scene.owner
        raw = self._scene.api.world.get(owner.group_version, owner.kind, owner.name, owner.namespace)
        return PHASE in raw["metadata"]["annotations"]


def start(it: Scene, make: Make) -> int:
    """Start the job in a new world. Return how many pods were made for it."""
    it.again(make())
    it.api.world.store.create(of("v1", "ConfigMap"), "ml", {"metadata": {"name": "gpufrag-restarter"}})
    return it.api.world.store.pods_made


@contextlib.contextmanager
def only(make: Make, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """The restarter supports only this kind, so its searches are short."""
    with scene(make()) as it:
        monkeypatch.setattr(backend, "TARGETS", {it.target.kind: it.target})
        yield it


def pods_of_a_restart(it: Scene, make: Make) -> int:
    made, process = start(it, make), Process(it)
    process.send()
    process.go()
    assert process.outcomes == ["started", "restarted"]
    it.api.world.tick(SETTLE)
    return it.api.world.store.pods_made - made


def assert_whole(it: Scene, made: int, pods: int) -> None:
    it.api.world.tick(SETTLE)
    new = it.api.world.store.pods_made - made
    assert new in (0, pods)
    job = it.read()
    assert it.backend.state(job).stage is Stage.RUNNING if new else it.pods()
    assert job.record.phase is None
    assert not job.handle.owner.status.get("failed")
    assert not (job.handle.owner.status.get("retryCount") or 0) > 1


@pytest.mark.parametrize("make", manifests.ALL, ids=lambda make: make.__name__)
def test_restarter_killed_after_any_call(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with only(make, monkeypatch) as it:
        pods, killed, number = pods_of_a_restart(it, make), True, 0
        while killed:
            number += 1
            made = start(it, make)
            first = Process(it, KilledAfter(it.client, number))
            first.send()
            killed = first.go_until_killed()
            Process(it, since_s=3600.0).go()
            assert_whole(it, made, pods)
        assert number > 10


@pytest.mark.parametrize(
    ("make", "fault"),
    [(manifests.job, CUT), *((make, CUT_AFTER) for make in manifests.ALL)],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_any_request_may_fail(make: Make, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    with only(make, monkeypatch) as it:
        pods = pods_of_a_restart(it, make)
        for number in range(1, it.api.faults.requests + 1):
            made = start(it, make)
            process = Process(it)
            it.api.faults.at(number, fault)
            process.send()
            process.go()
            it.api.faults.clear()
            assert_whole(it, made, pods)
            assert it.api.world.store.pods_made - made == pods, f"request {number}"


def suspended(it: Scene) -> tuple[int, Process]:
    made, process = start(it, manifests.job), Process(it)
    process.send()
    while not it.api.world.get("batch/v1", "Job", "train")["spec"].get("suspend"):
        process.turn()
    return made, process


def test_outage_while_the_job_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    with only(manifests.job, monkeypatch) as it:
        made, process = suspended(it)
        it.api.faults.always(CUT)
        for _ in range(12):
            process.turn()
        it.api.faults.clear()
        process.go()
        assert_whole(it, made, 2)
        assert process.outcomes[-1] == "restarted"


def test_lost_permission_does_not_block_other_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    with only(manifests.job, monkeypatch) as it:
        made, process = suspended(it)
        it.api.users[TOKEN] = User("restarter", (), "ml")
        while process.parts.metrics.value(IN_PROGRESS):
            process.turn()
        assert process.outcomes[-1] == "failed"
        it.api.users[TOKEN] = User("restarter")
        process.wall_s += 300
        process.go()
        assert_whole(it, made, 2)
        assert process.outcomes[-2:] == ["taken-over", "restarted"]


def test_terminating_namespace_loses_events_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with only(manifests.job, monkeypatch) as it:
        made, process = start(it, manifests.job), Process(it)
        it.api.world.terminating.add("ml")
        process.send()
        for _ in range(40):
            process.turn()
        it.api.world.terminating.clear()
        process.go()
        assert_whole(it, made, 2)
        assert it.api.world.events() == []


def test_two_restarters_with_one_alert_restart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with only(manifests.job, monkeypatch) as it:
        made = start(it, manifests.job)
        processes = [Process(it) for _ in range(2)]
        for process in processes:
            process.send()
        for _ in range(60):
            for process in processes:
                process.turn()
        assert_whole(it, made, 2)
        assert it.api.world.store.pods_made - made == 2
        assert it.read().record.count == 1


def lists(it: Scene) -> int:
    return len(
        [one for one in it.api.log if one.method == "GET" and one.path.count("/") == 6 and "pods" not in one.path]
    )


def test_forbidden_lists_are_not_requested_by_every_search() -> None:
    with scene(manifests.job()) as it:
        now = [0.0]
        it.backend.steady = lambda: now[0]
        rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list"]}]
        it.api.users[TOKEN] = User("restarter", tuple(rules), "ml")
        counts = []
        for seconds in (0.0, 300.0, 300.0, 3600.0):
            now[0] += seconds
            before = lists(it)
            assert it.backend.unfinished().error is None
            counts.append(lists(it) - before)
        assert counts == [10, 1, 1, 10]


def test_search_without_any_permission_is_an_error() -> None:
    with scene(manifests.job()) as it:
        it.api.users[TOKEN] = User("restarter", (), "ml")
        assert [type(it.backend.unfinished().error).__name__ for _ in range(3)] == ["Denied"] * 3
        it.api.users[TOKEN] = User("restarter")
        assert it.backend.unfinished().error is None


def test_job_in_a_namespace_no_longer_configured_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    with only(manifests.job, monkeypatch) as it:
        made, _ = suspended(it)
        other = replace(CONFIG, policy=replace(CONFIG.policy, namespaces=("other",)))
        it.api.users[TOKEN] = User("restarter", tuple(ROLE_AND_CIRCUIT), "ml")
        process = Process(it, config=other)
        process.go()
        assert_whole(it, made, 2)
        assert process.outcomes == ["taken-over", "restarted"]


def test_inaccessible_namespace_of_earlier_restarts_is_reported() -> None:
    with scene(manifests.job()) as it:
        it.api.users[TOKEN] = User("restarter", namespace="ml")
        search = it.backend.unfinished(["gone"])
        assert (search.error, search.unsearched) == (None, frozenset({"gone"}))
