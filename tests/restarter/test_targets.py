"""Every kind of job, restarted against controllers that behave like the real ones; and every one that is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpufrag.restarter import reasons
from gpufrag.restarter.backend import Conflict, NotFound, Stage, State
from gpufrag.restarter.kubernetes import objects as kinds
from gpufrag.restarter.kubernetes.objects import Owner, Pod, owner_from, selector_of
from gpufrag.restarter.kubernetes.targets import NODE_NAME, TARGETS, OldPods, Suspend, rolled_out
from gpufrag.restarter.reasons import Reason, Refused
from gpufrag.restarter.record import PHASE, SUSPENDED, WAITING, RestartRecord
from restarter.fake_api import manifests
from restarter.fake_api.server import Fault
from restarter.scene import Scene, scene

Make = Callable[..., dict[str, Any]]
every_kind = pytest.mark.parametrize("make", manifests.ALL, ids=lambda make: make.__name__)
SUSPENDABLE = [manifests.job, manifests.job_set, manifests.train_job, manifests.pytorch_job, manifests.ray_job]
every_suspendable_kind = pytest.mark.parametrize("make", SUSPENDABLE, ids=lambda make: make.__name__)


@every_kind
def test_restart_replaces_the_pods(make):
    with scene(make()) as it:
        before = it.pods()
        it.restart()
        assert it.pods()
        assert it.pod.uid in before - it.pods()


@every_kind
def test_restarted_job_stays_as_it_is(make):
    with scene(make()) as it:
        it.restart()
        kept = it.pods()
        it.finish()
        assert it.pods() == kept


@every_kind
def test_job_is_not_running_before_its_pods_are_new(make):
    """The status still looks good at that moment, because no controller has acted yet."""
    with scene(make()) as it:
        it.api.world.grace_ticks = 10**9
        it.stop()
        assert all(it.backend.state(it.read()).stage is not Stage.RUNNING for _ in range(20))


@every_suspendable_kind
def test_no_new_pod_exists_while_an_old_one_lives(make):
    """Two pods of one rank at once would write the same checkpoint."""
    with scene(make()) as it:
        it.api.world.grace_ticks = 10**9
        old = it.pods()
        it.stop()
        assert {it.backend.state(it.read()).stage for _ in range(10)} == {Stage.STOPPING}
        it.api.world.grace_ticks = 0
        it.until(lambda: it.backend.state(it.read()).confirmed)
        assert not old & {one["metadata"]["uid"] for one in it.api.world.pods()}


def test_record_and_change_are_one_patch():
    with scene(manifests.job()) as it:
        it.stop()
        (sent,) = it.api.sent("PATCH")
        body = json.loads(sent.body)
        assert body["spec"] == {"suspend": True}
        assert body["metadata"]["annotations"][PHASE] == SUSPENDED
        assert body["metadata"]["annotations"]["gpufrag.dev/restart-order"].endswith(" 2")
        assert body["metadata"]["resourceVersion"]


def test_of_two_restarters_one_stops_the_job():
    with scene(manifests.job()) as it:
        it.backend.stop(it.job, it.job.record)
        with pytest.raises(Conflict):
            it.backend.stop(it.job, it.job.record)


@every_kind
def test_dry_run_changes_nothing(make):
    with scene(make()) as it:
        before = it.pods()
        it.backend.stop(it.job, it.job.record, dry_run=True)
        after: Owner = it.read().handle.owner
        assert after.annotations == it.owner.annotations
        assert after.raw["metadata"]["generation"] == it.owner.raw["metadata"]["generation"]
        assert it.pods() == before


def test_job_set_restart_is_not_counted():
    with scene(manifests.job_set()) as it:
        it.restart()
        assert "restarts" not in it.read().handle.owner.status


def test_volcano_counts_one_restart_and_gets_one_command():
    with scene(manifests.volcano_job()) as it:
        it.restart()
        status = it.read().handle.owner.status
        assert (status["version"], status["retryCount"]) == (1, 1)
        assert len(it.api.sent("POST", "/commands")) == 1


def test_waiting_command_is_accepted():
    with scene(manifests.volcano_job()) as it:
        it.api.faults.on("POST", "/commands", Fault(409))
        it.stop()
        assert it.read().record.order == "0"


def test_only_the_pods_own_group_is_recreated():
    with scene(manifests.leader_worker_set()) as it:
        before = it.pods()
        it.restart()
        assert len(before & it.pods()) == 2


def test_groups_without_recreation_are_rolled_out():
    with scene(manifests.leader_worker_set(restartPolicy="None")) as it:
        before = it.pods()
        it.restart()
        it.until(lambda: not before & it.pods())


@pytest.mark.parametrize("make", [manifests.job, manifests.job_set], ids=lambda make: make.__name__)
def test_completed_indexes_are_not_awaited(make):
    with scene(make()) as it:
        it.api.world.end_pod(next(pod["metadata"]["name"] for pod in it.api.world.pods()))
        it.restart()
        assert len(it.pods()) == 1


def test_template_that_was_changed_back_is_no_success():
    """An operator that owns a Deployment reverts the change; its status then looks complete with the old pods."""
    with scene(manifests.deployment()) as it:
        template = it.owner.spec["template"]
        it.stop()
        it.api.world.get("apps/v1", "Deployment", "train")["spec"]["template"] = template
        for _ in range(30):
            state = it.backend.state(it.read())
            assert state.stage is Stage.STARTING
        assert "changed the pod template back" in state.waits_for


def test_eviction_reaches_no_other_pod():
    with scene(manifests.workflow()) as it:
        gone = replace(it.pod, uid="11111111-0000-4000-8000-000000000000")
        it.target.stop(it.client, it.owner, gone, RestartRecord(), False)
        assert it.read().record.order == f"{gone.name}/{gone.uid}"
        assert it.pod.uid in it.pods()


def test_conflict_over_the_same_pod_is_an_error():
    with scene(manifests.workflow()) as it:
        it.api.faults.on("POST", "/eviction", Fault(409))
        with pytest.raises(Conflict):
            it.backend.stop(it.job, it.job.record)


@pytest.mark.parametrize("make", [manifests.leader_worker_set, manifests.workflow, manifests.volcano_job])
def test_order_without_effect_is_seen(make):
    """The restarter was killed after it stored the record and before it sent the order."""
    with scene(make()) as it:
        order = "0" if it.job.kind == str(kinds.VOLCANO_JOB) else f"{it.pod.name}/{it.pod.uid}"
        job = it.backend.remember(it.job, RestartRecord(phase=WAITING, order=order).annotations())
        assert it.backend.state(job) == State(Stage.ORDERED, runs=True)


def changed(make: Make, **spec: Any) -> dict[str, Any]:
    manifest = make()
    return {**manifest, "spec": {**manifest["spec"], **spec}}


def labelled(make: Make) -> dict[str, Any]:
    manifest = make()
    labels = {"kueue.x-k8s.io/queue-name": "gpus"}
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels}}


KUEUE = "kueue.x-k8s.io/multikueue"
REFUSED = [
    (reasons.KUEUE, changed(manifests.job, managedBy=KUEUE)),
    (reasons.KUEUE, changed(manifests.pytorch_job, runPolicy={"managedBy": KUEUE})),
    *((reasons.KUEUE, labelled(make)) for make in manifests.ALL),
    (reasons.UNKNOWN_CONTROLLER, changed(manifests.job, managedBy="example.com/other")),
    (reasons.NO_RETRIES_LEFT, changed(manifests.volcano_job, maxRetry=1)),
    (reasons.CLUSTER_KEPT, changed(manifests.ray_job, shutdownAfterJobFinishes=False)),
    (reasons.SHARED_CLUSTER, changed(manifests.ray_job, clusterSelector={"ray.io/cluster": "shared"})),
    (reasons.INTERACTIVE_MODE, changed(manifests.ray_job, submissionMode="InteractiveMode")),
    (reasons.NO_RETRY, manifests.workflow(retryPolicy="OnFailure")),
    (reasons.NO_RETRY, manifests.workflow(retryPolicy="Always", limit="0")),
    (reasons.NO_RETRY, manifests.workflow(retryPolicy="Always", expression="lastRetry.exitCode != '-1'")),
    (reasons.NO_RETRY, changed(manifests.workflow, workflowTemplateRef={"name": "elsewhere"}, templates=[])),
    (reasons.ROLLOUT_PAUSED, changed(manifests.deployment, paused=True)),
    (reasons.ON_DELETE, changed(manifests.stateful_set, updateStrategy={"type": "OnDelete"})),
]


@pytest.mark.parametrize(
    ("reason", "manifest"), REFUSED, ids=lambda one: one.label if isinstance(one, Reason) else one["kind"]
)
def test_harmful_restart_is_refused(reason, manifest):
    with scene(manifest) as it:
        with pytest.raises(Refused) as refused:
            it.backend.check(it.job)
        assert refused.value.reason == reason
        assert it.api.sent("PATCH") == []


@pytest.mark.parametrize("make", [manifests.job, manifests.pytorch_job], ids=lambda make: make.__name__)
def test_own_controller_as_manager_is_accepted(make):
    own = {manifests.job: "kubernetes.io/job-controller", manifests.pytorch_job: "kubeflow.org/training-operator"}[make]
    path = {"managedBy": own} if make is manifests.job else {"runPolicy": {"managedBy": own}}
    with scene(changed(make, **path)) as it:
        it.backend.check(it.job)


@every_suspendable_kind
def test_suspended_job_is_left_alone(make):
    with scene(make()) as it:
        it.stop()
        with pytest.raises(Refused) as refused:
            it.backend.check(it.read())
        assert refused.value.reason == reasons.SUSPENDED


@pytest.mark.parametrize(
    ("limit", "node", "refused"),
    [
        ("2", "train(1)", False),
        ("2", "train(2)", True),
        ("2", "train.fit(0)", False),
        ("2", "", True),
        ("{{retries}}", "train(0)", True),
        ("", "train(7)", False),
    ],
)
def test_workflow_needs_a_retry_for_the_evicted_step(limit, node, refused):
    manifest = manifests.workflow(retryPolicy="Always", **({"limit": limit} if limit else {}))
    owner = owner_of(manifest)
    pod = Pod("ml", "train-0", "u0", annotations={NODE_NAME: node})
    if not refused:
        return TARGETS[kinds.WORKFLOW].check(owner, pod)
    with pytest.raises(Refused) as error:
        TARGETS[kinds.WORKFLOW].check(owner, pod)
    assert error.value.reason == reasons.NO_RETRIES_LEFT
    return None


def test_every_kind_is_tested():
    made = {(make()["apiVersion"], make()["kind"]) for make in manifests.ALL}
    assert made == {(kinds.group_version(kind), kind.kind) for kind in TARGETS}
    assert all(TARGETS[kind].kind == kind for kind in TARGETS)


READY = Pod("ml", "train-0", "u0", created="2026-01-01T00:00:09Z", phase="Running", ready=True)
OLD = replace(READY, name="train-old", created="2026-01-01T00:00:01Z")
REPORTED_SUSPENDED = {"conditions": [{"type": "Suspended", "status": "True"}]}


class Pods:
    """A client that returns these pods."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = pods

    def list_pods(self, namespace: str, selector: str) -> tuple[Pod, ...]:
        return self.pods

    def get_pod(self, namespace: str, name: str) -> Pod:
        for pod in self.pods:
            if pod.name == name:
                return pod
        raise NotFound("gone")


def owner_of(manifest: dict[str, Any], status: Any = None, **spec: Any) -> Owner:
    meta = {**manifest["metadata"], "uid": "u", "resourceVersion": "1", "generation": 2}
    raw = {"metadata": meta, "spec": {**manifest["spec"], **spec}, "status": status or {}}
    return owner_from(raw, manifest["apiVersion"], manifest["kind"])


def state(manifest: dict[str, Any], pods: tuple[Pod, ...], status: Any = None, order: str = "", **spec: Any) -> State:
    owner = owner_of(manifest, status, **spec)
    record = RestartRecord(phase=WAITING, order=order or str(OldPods("2026-01-01T00:00:01Z", 2)), by="test-1")
    client: Any = Pods(*pods)
    return TARGETS[owner.group_kind].state(client, owner, record)


@pytest.mark.parametrize(
    ("pods", "waits_for"),
    [
        ((READY, READY), ""),
        ((READY,), "1 of 2 pods exist"),
        ((READY, replace(READY, phase="Succeeded")), ""),
        ((READY, replace(OLD, phase="Succeeded")), "1 of 2 pods exist"),
        ((READY, replace(READY, ready=False)), "pods are not ready: train-0"),
        ((READY, READY, replace(READY, deleting=True)), "pods are terminating: train-0"),
        ((READY, READY, replace(READY, phase="Failed", ready=False)), ""),
        ((READY, READY, OLD), "pods from before the restart are still there: train-old"),
    ],
)
def test_job_runs_when_all_new_pods_are_ready(pods, waits_for):
    expected = State(Stage.STARTING, waits_for) if waits_for else State(Stage.RUNNING)
    assert state(manifests.job(), pods) == expected


@pytest.mark.parametrize("make", [manifests.job, manifests.volcano_job, manifests.workflow])
def test_unschedulable_pod_waits_for_resources(make):
    waiting = replace(READY, ready=False, unschedulable="Unschedulable: 0/8 nodes are available")
    status = {"version": 1, "state": {"phase": "Running"}}
    assert state(make(), (waiting, READY), status) == State(
        Stage.STARTING, "pod train-0: Unschedulable: 0/8 nodes are available", needs_resources=True
    )


def test_queued_volcano_job_waits_for_resources():
    found = state(manifests.volcano_job(), (), {"version": 1, "state": {"phase": "Pending"}})
    assert found == State(Stage.STARTING, "Volcano reports the phase Pending", needs_resources=True)


def test_autoscaled_cluster_may_be_smaller_than_before():
    scaled = {"rayClusterSpec": {"enableInTreeAutoscaling": True}}
    assert state(manifests.ray_job(), (READY,)).stage is Stage.STARTING
    assert state(manifests.ray_job(), (READY,), **scaled).stage is Stage.RUNNING


@pytest.mark.parametrize(
    ("pods", "status", "expected"),
    [
        ((), REPORTED_SUSPENDED, (Stage.STOPPED, True)),
        ((replace(OLD, phase="Failed"),), REPORTED_SUSPENDED, (Stage.STOPPED, True)),
        ((), {}, (Stage.STOPPED, False)),
        ((replace(OLD, deleting=True),), REPORTED_SUSPENDED, (Stage.STOPPING, False)),
    ],
)
def test_suspended_job_is_stopped_without_pods(pods, status, expected):
    found = state(manifests.job(), pods, status, suspend=True)
    assert (found.stage, found.confirmed) == expected


def test_job_reported_as_suspended_does_not_run():
    assert state(manifests.job(), (READY, READY), REPORTED_SUSPENDED).stage is Stage.STARTING


DONE = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}


@pytest.mark.parametrize("make", [manifests.deployment, manifests.stateful_set, manifests.leader_worker_set])
def test_rollout_is_complete_when_every_count_is(make):
    assert rolled_out(owner_of(make(), DONE))
    for key in DONE:
        assert not rolled_out(owner_of(make(), {**DONE, key: 1}))
        absent = {other: DONE[other] for other in DONE if other != key}
        assert rolled_out(owner_of(make(), absent)) == (key == "observedGeneration")
    assert not rolled_out(owner_of(make(), {**DONE, "replicas": 3}))


@pytest.mark.parametrize("make", [manifests.leader_worker_set, manifests.workflow])
def test_evicted_pod_must_be_gone(make):
    def found(*pods: Pod) -> Stage:
        return state(make(), pods, DONE, order="train-0/u0").stage

    another = replace(READY, uid="u1")
    assert found(READY) is Stage.ORDERED
    assert found(replace(READY, deleting=True)) is Stage.STARTING
    assert found(another) is found(replace(another, name="train-1")) is Stage.RUNNING


@pytest.mark.parametrize("order", ["", "x", "2026 -1", " 99999999999"])
def test_any_order_can_be_read(order):
    assert OldPods.parse(order).count == 1


def test_selector_has_the_form_of_a_url():
    expressions = [
        {"key": "a", "operator": "In", "values": ["1", "2"]},
        {"key": "b", "operator": "NotIn", "values": ["3"]},
        {"key": "c", "operator": "Exists"},
        {"key": "d", "operator": "DoesNotExist"},
    ]
    selector = {"matchLabels": {"x": "y"}, "matchExpressions": expressions}
    assert selector_of(selector) == "x=y,a in (1,2),b notin (3),c,!d"


def test_ray_pods_are_those_of_the_current_cluster():
    target = TARGETS[kinds.RAY_JOB]
    assert isinstance(target, Suspend)
    assert target.selector(owner_of(manifests.ray_job(), {"rayClusterName": "train-abc"})) == "ray.io/cluster=train-abc"


def volcano_that_is_slow(it: Scene) -> None:
    """Volcano has deleted the command, and its version has not changed yet."""
    it.api.faults.on("POST", "/commands", Fault(201, body=b"{}"))


def test_order_in_progress_is_not_visible_yet():
    with scene(manifests.volcano_job()) as it:
        volcano_that_is_slow(it)
        it.stop()
        assert it.backend.state(it.read()) == State(Stage.ORDERED, runs=True)
