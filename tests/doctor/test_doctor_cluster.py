"""The checks of a cluster, on the fake API server, with pods as deploy/ makes them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from gpufrag.doctor.cluster import CHECKS, Place
from gpufrag.doctor.results import Fail, Ok, Result, Warn
from gpufrag.restarter.kubernetes.client import KubernetesCluster
from gpufrag.restarter.kubernetes.kinds import JOB, JOB_SET, LEADER_WORKER_SET
from gpufrag.restarter.kubernetes.permissions import role_rules
from helpers import TESTS
from restarter.fake_api import manifests
from restarter.fake_api.rbac import User
from restarter.fake_api.server import TOKEN, FakeApi, fake_api

DEPLOY = TESTS.parent / "deploy" / "kubernetes"
POD: dict[str, Any] = yaml.safe_load((DEPLOY / "sidecar" / "pod.yaml").read_text())
MONITOR: dict[str, Any] = yaml.safe_load((DEPLOY / "monitoring" / "podmonitor.yaml").read_text())


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as one:
        yield one


def look(api: FakeApi, check: str, namespace: str = "ml") -> Result:
    cluster = KubernetesCluster(api.config(), trust_env=False)
    (row,) = [row for row in CHECKS if row.name == check]
    try:
        return row.run(Place(cluster, namespace))
    finally:
        cluster.close()


def run_job(api: FakeApi, change: Callable[[dict[str, Any]], object] = lambda spec: None, **annotations: str) -> None:
    """With pods that have our sidecar as it is shipped, but for `change`."""
    spec = copy.deepcopy(POD["spec"])
    spec["restartPolicy"] = "Never"
    spec["containers"][0]["image"] = "local/training:1"
    change(spec)
    job = manifests.job(template={"metadata": {"labels": {"team": "a"}}, "spec": spec})
    job["metadata"]["annotations"] |= {name.replace("_", "-"): value for name, value in annotations.items()}
    api.world.apply(job)


def annotate(api: FakeApi, **annotations: str) -> None:
    named = {f"gpufrag.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    api.world.get("batch/v1", "Job", "train")["metadata"]["annotations"] |= named


def monitor(api: FakeApi, namespace: str = "gpufrag", **spec: Any) -> None:
    body = copy.deepcopy(MONITOR)
    body["metadata"]["namespace"] = namespace
    api.world.apply({**body, "spec": {**body["spec"], **spec}})


def config_map(api: FakeApi, name: str, data: dict[str, str] | None = None, **annotations: str) -> None:
    meta = {"name": name, "namespace": "gpufrag", "annotations": annotations}
    api.world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **({"data": data} if data else {})})


def configure(api: FakeApi, **policy: Any) -> None:
    config_map(api, "gpufrag-restarter-config", {"restarter.yaml": yaml.safe_dump({"policy": policy})})


def test_an_administrator_may_restart_everything(api):
    result = look(api, "permissions")
    assert isinstance(result, Ok)
    assert "Job.batch" in result.text


def test_the_role_of_the_chart_is_enough_for_its_kinds(api):
    api.users[TOKEN] = User("restarter", tuple(role_rules([JOB, JOB_SET])), "ml")
    assert look(api, "permissions") == Ok("restarter may restart in ml: Job.batch, JobSet.jobset.x-k8s.io")


def test_what_a_role_lacks_is_named_with_its_purpose(api):
    rules = [rule for rule in role_rules([LEADER_WORKER_SET]) if rule["resources"] != ["pods/eviction"]]
    api.users[TOKEN] = User("restarter", tuple(rules), "ml")
    assert "create pods/eviction (to restart one pod)" in told(look(api, "permissions"), Fail)


def test_a_role_for_no_kind_restarts_nothing(api):
    api.users[TOKEN] = User("restarter", tuple(role_rules([])), "ml")
    assert "may restart nothing in ml" in told(look(api, "permissions"), Fail)


@pytest.mark.parametrize("check", ["sidecars", "volumes", "podmonitor", "jobs"])
def test_where_no_pod_has_our_sidecar_that_is_said(api, check):
    api.world.apply(manifests.job())
    assert "no pod of ml has our sidecar" in told(look(api, check), Warn)


def test_the_pod_that_is_shipped_is_good(api):
    run_job(api)
    assert look(api, "sidecars") == Ok("2 pod(s) of ml have it")
    assert isinstance(look(api, "volumes"), Ok)


def test_a_sidecar_among_the_main_containers_is_told(api):
    def bind(spec: dict[str, Any]) -> None:
        sidecar = spec["initContainers"].pop()
        del sidecar["restartPolicy"]
        spec["containers"].append(sidecar)

    run_job(api, bind)
    assert "a Job beside it never ends" in told(look(api, "sidecars"), Warn)
    assert isinstance(look(api, "volumes"), Ok)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda spec: spec["containers"][0].update(volumeMounts=[]), Fail, "no container but the sidecar mounts"),
        (lambda spec: spec["initContainers"][1].update(volumeMounts=[]), Fail, "mounts no volume at /run/gpufrag"),
        (lambda spec: spec["containers"][0]["env"][0].update(value="/tmp"), Fail, "where GPUFRAG_DIR points"),
        (lambda spec: spec["volumes"][0].update(emptyDir={}), Warn, "no emptyDir with `medium: Memory`"),
    ],
)
def test_a_folder_that_is_not_shared_is_told(api, change, kind, text):
    run_job(api, change)
    assert text in told(look(api, "volumes"), kind)


def test_the_pod_monitor_that_is_shipped_selects_them(api):
    run_job(api)
    monitor(api)
    assert look(api, "podmonitor") == Ok("gpufrag-sidecars selects all 2 pod(s)")


@pytest.mark.parametrize(
    "spec",
    [
        {"selector": {"matchLabels": {"team": "b"}}},
        {"selector": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}},
        {"selector": {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}},
        {"namespaceSelector": {}},
        {"namespaceSelector": {"matchNames": ["other"]}},
        {"podMetricsEndpoints": [{"port": "metrics"}]},
    ],
)
def test_pods_that_no_pod_monitor_selects_are_told(api, spec):
    run_job(api)
    monitor(api, **spec)
    assert "selected by no PodMonitor (gpufrag-sidecars)" in told(look(api, "podmonitor"), Fail)


@pytest.mark.parametrize(
    "spec",
    [
        {"selector": {"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "team", "operator": "Exists"}]}},
        {"selector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}},
        {"namespaceSelector": {"matchNames": ["ml"]}},
    ],
)
def test_selectors_are_read_as_the_operator_does(api, spec):
    run_job(api)
    monitor(api, **spec)
    assert isinstance(look(api, "podmonitor"), Ok)


def test_no_pod_monitor_at_all_may_be_right(api):
    run_job(api)
    assert "no PodMonitor in ml or gpufrag" in told(look(api, "podmonitor"), Warn)


def test_jobs_that_have_opted_in_are_named(api):
    run_job(api)
    assert look(api, "jobs") == Ok("1 of 1 job(s) have opted in: Job.batch ml/train")


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({"restart": "false"}, "none of 1 job(s) has opted in"),
        ({"pause": "true"}, "remove the annotation gpufrag.dev/pause"),
        ({"restart_stopped": "it does not help"}, "then remove gpufrag.dev/restart-stopped"),
    ],
)
def test_what_keeps_a_job_from_being_restarted_is_told(api, annotations, text):
    run_job(api)
    annotate(api, **annotations)
    assert text in told(look(api, "jobs"), Warn)


def test_a_pod_without_a_job_is_told(api):
    pod = copy.deepcopy(POD)
    pod["metadata"] = {"name": "alone", "namespace": "ml"}
    pod["spec"]["containers"][0]["image"] = "local/training:1"
    api.world.apply({**pod, "status": {"phase": "Running"}})
    assert "1 pod(s) belong to no job that can be restarted; pod ml/alone has no controller" in told(
        look(api, "jobs"), Warn
    )


@pytest.mark.parametrize(
    ("policy", "kind", "text"),
    [
        ({"namespaces": ["ml"], "dry_run": False}, Ok, "restarts in ml"),
        ({"namespaces": ["ml"]}, Warn, "a dry run"),
        ({"namespaces": ["ml"], "enabled": False}, Warn, "policy.enabled is false"),
        ({"namespaces": ["other"], "dry_run": False}, Warn, "does not have ml"),
    ],
)
def test_the_restarters_config_is_read(api, policy, kind, text):
    configure(api, **policy)
    assert text in told(look(api, "restarter"), kind)


def test_what_may_not_be_looked_at_is_no_fault_of_the_cluster(api):
    api.users[TOKEN] = User("restarter", tuple(role_rules([JOB])), "ml")
    assert "not looked at" in told(look(api, "restarter"), Warn)


def test_it_changes_nothing(api):
    run_job(api)
    monitor(api)
    configure(api, namespaces=["ml"])
    config_map(api, "gpufrag-restarter")
    api.log.clear()
    for check in CHECKS:
        look(api, check.name)
    assert {one.method for one in api.log if not one.path.endswith("reviews")} == {"GET"}


def told(result: Result, kind: type[Ok] | type[Warn] | type[Fail]) -> str:
    assert isinstance(result, kind), result
    return result.text
