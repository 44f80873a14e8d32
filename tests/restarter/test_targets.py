"""Every kind of job, restarted against controllers that do as theirs do; and every one that is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpufrag.restarter.errors import Refused
from gpufrag.restarter.kubernetes import kinds
from gpufrag.restarter.kubernetes.targets import TARGETS
from restarter.fake_api import manifests
from restarter.restarting import scene

Make = Callable[..., dict[str, Any]]
every_kind = pytest.mark.parametrize("make", manifests.ALL, ids=lambda make: make.__name__)
SUSPENDED = [manifests.job, manifests.job_set, manifests.train_job, manifests.pytorch_job, manifests.ray_job]
every_suspended_kind = pytest.mark.parametrize("make", SUSPENDED, ids=lambda make: make.__name__)


@every_kind
def test_its_pods_are_replaced_and_all_of_it_runs_again(make: Make) -> None:
    with scene(make()) as it:
        before = it.pods()
        assert it.target.running(it.cluster, it.owner())
        it.restart()
        assert it.pods()
        assert it.resolved.pod.uid in before - it.pods()


@every_suspended_kind
def test_no_new_pod_is_made_while_an_old_one_lives(make: Make) -> None:
    """Two pods of one rank at once would write one checkpoint."""
    with scene(make()) as it:
        it.api.world.grace_ticks = 10**9
        old = it.pods()
        it.cluster.patch(it.owner().ref, it.target.plan(it.resolved.owner, it.resolved.pod)[0].body, None)  # type: ignore[union-attr]
        assert not any(it.target.stopped(it.cluster, it.owner()) for _ in range(10))
        it.api.world.grace_ticks = 0
        it.until(lambda: it.target.stopped(it.cluster, it.owner()))
        assert not old & {one["metadata"]["uid"] for one in it.api.world.pods()}


@every_kind
def test_a_restart_leaves_nothing_to_do(make: Make) -> None:
    with scene(make()) as it:
        assert it.target.rest(it.owner()) == ()
        it.restart()
        kept = it.pods()
        it.go(it.target.rest(it.owner()))
        assert it.pods() == kept


@every_suspended_kind
def test_one_left_suspended_is_to_be_resumed(make: Make) -> None:
    with scene(make()) as it:
        first, *others = it.target.plan(it.resolved.owner, it.resolved.pod)
        it.cluster.patch(it.resolved.owner.ref, first.body, None)  # type: ignore[union-attr]
        assert it.target.rest(it.owner()) == tuple(others)


def test_a_restart_of_a_job_set_counts_as_none() -> None:
    with scene(manifests.job_set()) as it:
        it.restart()
        assert "restarts" not in it.owner().status


def test_volcano_counts_a_restart_as_a_retry() -> None:
    with scene(manifests.volcano_job()) as it:
        it.restart()
        assert (it.owner().status["version"], it.owner().status["retryCount"]) == (1, 1)


def test_only_the_group_of_the_pod_is_made_anew() -> None:
    with scene(manifests.leader_worker_set()) as it:
        before = it.pods()
        it.restart()
        assert len(before & it.pods()) == 2


def test_groups_that_are_not_recreated_are_rolled_over() -> None:
    with scene(manifests.leader_worker_set(restartPolicy="None")) as it:
        before = it.pods()
        it.restart()
        it.until(lambda: not before & it.pods())


def test_a_job_that_is_nearly_done_runs_with_fewer_pods() -> None:
    with scene(manifests.job(parallelism=2, completions=3)) as it:
        for name in [pod["metadata"]["name"] for pod in it.api.world.pods()]:
            it.api.world.end_pod(name, succeeded=True)
        it.restart()
        assert len(it.pods()) == 1


def changed(make: Make, **spec: Any) -> dict[str, Any]:
    manifest = make()
    return {**manifest, "spec": {**manifest["spec"], **spec}}


def labelled(make: Make) -> dict[str, Any]:
    manifest = make()
    labels = {"kueue.x-k8s.io/queue-name": "gpus"}
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels}}


KUEUE = "kueue.x-k8s.io/multikueue"
REFUSED = [
    ("kueue", changed(manifests.job, managedBy=KUEUE)),
    ("kueue", changed(manifests.pytorch_job, runPolicy={"managedBy": KUEUE})),
    *(("kueue", labelled(make)) for make in manifests.ALL),
    ("max-retry", changed(manifests.volcano_job, maxRetry=1)),
    ("keeps-cluster", changed(manifests.ray_job, shutdownAfterJobFinishes=False)),
    ("shared-cluster", changed(manifests.ray_job, clusterSelector={"ray.io/cluster": "shared"})),
    ("no-retry", manifests.workflow(retryPolicy="OnFailure")),
    ("no-retry", manifests.workflow(retryPolicy="Always", limit="0")),
    ("no-retry", changed(manifests.workflow, workflowTemplateRef={"name": "elsewhere"}, templates=[])),
    ("paused", changed(manifests.deployment, paused=True)),
    ("on-delete", changed(manifests.stateful_set, updateStrategy={"type": "OnDelete"})),
]


@pytest.mark.parametrize(("reason", "manifest"), REFUSED, ids=lambda one: one if isinstance(one, str) else one["kind"])
def test_what_a_restart_would_harm_is_refused_with_what_to_do(reason: str, manifest: dict[str, Any]) -> None:
    with scene(manifest) as it:
        patched = it.api.sent("PATCH")
        with pytest.raises(Refused, match=r"\w: \w") as refused:
            it.target.plan(it.resolved.owner, it.resolved.pod)
        assert refused.value.reason == reason
        assert it.api.sent("PATCH") == patched == []


@every_suspended_kind
def test_one_that_somebody_else_suspended_is_left_alone(make: Make) -> None:
    with scene(make()) as it:
        first, *_ = it.target.plan(it.resolved.owner, it.resolved.pod)
        suspended = it.cluster.patch(it.resolved.owner.ref, first.body, None)  # type: ignore[union-attr]
        with pytest.raises(Refused) as refused:
            it.target.plan(suspended, it.resolved.pod)
        assert refused.value.reason == "suspended"


def test_each_kind_of_the_table_is_tried_here() -> None:
    made = {(make()["apiVersion"], make()["kind"]) for make in manifests.ALL}
    assert made == {(kinds.group_version(kind), kind.kind) for kind in TARGETS}


@pytest.mark.parametrize("kind", TARGETS, ids=str)
def test_each_says_what_is_lost_in_a_line_of_an_event(kind: Any) -> None:
    assert 20 < len(TARGETS[kind].lost) < 120
    assert TARGETS[kind].kind == kind
