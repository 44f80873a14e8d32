"""The whole restarter on the fake API server over HTTP: killed at every call, cut off at every request, kept waiting.

Whatever happens, no job stays suspended, none is restarted twice for one alert, and no pod counts as failed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpufrag.restarter import server
from gpufrag.restarter.backend import Denied, Stage
from gpufrag.restarter.kubernetes import backend
from gpufrag.restarter.kubernetes.objects import JOB
from gpufrag.restarter.kubernetes.permissions import role_rules
from gpufrag.restarter.metrics import IN_PROGRESS
from gpufrag.restarter.record import PHASE
from gpufrag.restarter.settings import RestarterConfig
from restarter.fake_api import manifests
from restarter.fake_api.server import ADMIN, CUT, CUT_AFTER
from restarter.fake_api.world import SETTLE
from restarter.memory_backend import Killed
from restarter.scene import Scene, scene
from restarter.worker_rig import LIVE, START_S, FakeTime, TimedRestarter, alert

CIRCUIT = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}
RESTARTED = ["started started", "restarted restarted"]


class KilledAfter:
    """A client whose process ends after its call of this number."""

    def __init__(self, client: Any, number: int) -> None:
        self.client, self.left = client, number

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        def call(*arguments, **named):
            answer = method(*arguments, **named)
            self.left -= 1
            if self.left == 0:
                raise Killed
            return answer

        return call


class Rig(TimedRestarter):
    def __init__(self, it: Scene, client: Any = None, since_s: float = 0.0, namespace: str = "ml") -> None:
        self.it = it
        time = FakeTime(START_S + since_s, 100 + since_s)
        config = RestarterConfig(policy=replace(LIVE, namespaces=(namespace,)))
        platform = server.kubernetes_platform(config, client or it.client, "ml", time.clock)
        super().__init__(platform, time, config)

    def start(self) -> Rig:
        return self.send(alert(self.it.pod.name))

    def idle(self) -> bool:
        """And the job has no phase, which is looked up without a request."""
        owner = self.it.owner
        raw = self.it.api.world.get(owner.group_version, owner.kind, owner.name, owner.namespace)
        return super().idle() and PHASE not in raw["metadata"]["annotations"]


class Case:
    """A restarter that supports only one kind of job, so its searches are short. A restart replaces `pods` pods."""

    def __init__(self, it: Scene, make: Any) -> None:
        self.it, self.make = it, make
        rig = self.rig().start().go()
        assert rig.outcomes == RESTARTED
        self.pods = self.new_pods()
        self.requests = it.api.faults.requests

    def rig(self) -> Rig:
        """Start the job in a new cluster. Return a restarter."""
        self.it.start(self.make())
        self.it.api.world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gpufrag-restarter"}})
        self.made = self.it.api.world.pods_made
        return Rig(self.it)

    def new_pods(self) -> int:
        self.it.api.world.tick(SETTLE)
        return self.it.api.world.pods_made - self.made

    def assert_whole(self) -> None:
        new = self.new_pods()
        assert new in (0, self.pods)
        job = self.it.read()
        assert self.it.backend.state(job).stage is Stage.RUNNING if new else self.it.pods()
        assert job.record.phase is None
        assert not self.it.read().handle.owner.status.get("failed")
        assert not (job.handle.owner.status.get("retryCount") or 0) > 1

    def assert_restarted(self) -> None:
        self.assert_whole()
        assert self.new_pods() == self.pods


@pytest.fixture
def case(request, monkeypatch):
    make = getattr(request, "param", manifests.job)
    with scene(make()) as it:
        monkeypatch.setattr(backend, "TARGETS", {it.target.kind: it.target})
        yield Case(it, make)


every_kind = pytest.mark.parametrize("case", manifests.ALL, indirect=True, ids=lambda make: make.__name__)


@every_kind
def test_restarter_killed_after_any_call(case):
    killed, number = True, 0
    while killed:
        number += 1
        case.rig()
        killed = Rig(case.it, KilledAfter(case.it.client, number)).start().go_until_killed()
        Rig(case.it, since_s=3600.0).go()
        case.assert_whole()
    assert number > 10


def any_request_may_fail(case, fault):
    for number in range(1, case.requests + 1):
        rig = case.rig()
        case.it.api.faults.at(number, fault)
        rig.start().go()
        case.it.api.faults.clear()
        case.assert_restarted()


@every_kind
def test_any_answer_may_be_lost(case):
    any_request_may_fail(case, CUT_AFTER)


def test_any_request_may_be_lost(case):
    any_request_may_fail(case, CUT)


@pytest.fixture
def suspended(case):
    """A restarter that has suspended the job."""
    rig = case.rig().start()
    return rig.until(lambda: case.it.api.world.get("batch/v1", "Job", "train")["spec"].get("suspend"))


def test_outage_while_the_job_is_suspended(case, suspended):
    case.it.api.faults.always(CUT)
    for _ in range(12):
        suspended.turn()
    case.it.api.faults.clear()
    assert suspended.go().outcomes[-1] == "restarted restarted"
    case.assert_restarted()


def test_lost_permission_does_not_block_other_restarts(case, suspended):
    case.it.allow(())
    suspended.until(lambda: not suspended.metrics.value(IN_PROGRESS))
    assert suspended.outcomes[-1].startswith("failed")
    case.it.allow(ADMIN)
    suspended.time.move(300)
    assert suspended.go().outcomes[-2:] == ["taken-over unfinished", "restarted restarted"]
    case.assert_restarted()


def test_terminating_namespace_loses_events_only(case):
    rig = case.rig().start()
    case.it.api.world.terminating.add("ml")
    for _ in range(40):
        rig.turn()
    case.it.api.world.terminating.clear()
    rig.go()
    case.assert_whole()
    assert case.it.api.world.events() == []


@every_kind
def test_two_restarters_with_one_alert_restart_once(case):
    rigs, before = [case.rig().start(), Rig(case.it).start()], orders(case.it)
    for rig in rigs * 100:
        rig.turn()
    case.assert_restarted()
    assert case.it.read().record.count == 1
    assert orders(case.it) - before <= 1


def orders(it):
    """Count the evictions and Volcano's Commands."""
    sent = [*it.api.sent("POST", "/eviction"), *it.api.sent("POST", "/commands")]
    return len([one for one in sent if not one.query.get("dryRun")])


def test_job_in_a_namespace_no_longer_configured_is_resumed(case, suspended):
    case.it.allow([*role_rules([JOB]), CIRCUIT])
    assert Rig(case.it, namespace="other").go().outcomes == ["taken-over unfinished", "restarted restarted"]
    case.assert_restarted()


@pytest.fixture
def it():
    with scene(manifests.job()) as one:
        yield one


def test_forbidden_lists_are_not_requested_by_every_search(it):
    now = [0.0]
    it.backend.steady = lambda: now[0]
    it.allow([{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list"]}])
    counts = []
    for seconds in (0.0, 300.0, 300.0, 3600.0):
        now[0] += seconds
        it.api.log.clear()
        assert it.backend.unfinished().error is None
        counts.append(len([one for one in it.api.log if "/namespaces/" in one.path]))
    assert counts == [10, 1, 1, 10]


def test_search_without_any_permission_is_an_error(it):
    it.allow(())
    assert [type(it.backend.unfinished().error) for _ in range(3)] == [Denied] * 3
    it.allow(ADMIN)
    assert it.backend.unfinished().error is None


def test_inaccessible_namespace_of_earlier_restarts_is_reported(it):
    it.allow(ADMIN)
    search = it.backend.unfinished(["gone"])
    assert (search.error, search.unsearched) == (None, frozenset({"gone"}))
