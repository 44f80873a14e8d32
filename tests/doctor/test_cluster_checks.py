"""The checks of a cluster, on the fake API server, with pods from deploy/."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from typing import Any

import pytest
import yaml

from doctor.results import text_of
from gpufrag.doctor.checks import Fail, Ok, Result, Unknown, Warn, examine
from gpufrag.doctor.cluster import CHECKS, Place
from gpufrag.restarter.kubernetes.client import KubernetesClient
from gpufrag.restarter.kubernetes.objects import JOB, JOB_SET, LEADER_WORKER_SET
from gpufrag.restarter.kubernetes.permissions import CIRCUIT, role_rules
from helpers import TESTS
from restarter.fake_api import manifests
from restarter.fake_api.server import TOKEN, FakeApi, User, fake_api

DEPLOY = TESTS.parent / "deploy" / "kubernetes"
POD: dict[str, Any] = yaml.safe_load((DEPLOY / "sidecar" / "pod.yaml").read_text())
MONITOR: dict[str, Any] = yaml.safe_load((DEPLOY / "monitoring" / "podmonitor.yaml").read_text())


NOW = 1_800_000_000.0


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as one:
        yield one


def place(cluster: KubernetesClient, namespace: str = "ml") -> Place:
    return Place(cluster, namespace, NOW)


def look(api: FakeApi, check: str, namespace: str = "ml") -> Result:
    (row,) = [row for row in CHECKS if row.name == check]
    with closing(KubernetesClient(api.config(), trust_env=False)) as cluster:
        return row.run(place(cluster, namespace))


def look_at_all(api: FakeApi, namespace: str = "ml") -> dict[str, Result]:
    with closing(KubernetesClient(api.config(), trust_env=False)) as cluster:
        return {one.check: one.result for one in examine("cluster", CHECKS, place(cluster, namespace))}


def labelled(template: dict[str, Any]) -> dict[str, Any]:
    template = copy.deepcopy(template)
    template.setdefault("metadata", {}).setdefault("labels", {})["gpufrag.dev/inject"] = "true"
    return template


def run_job(api: FakeApi, change: Callable[[dict[str, Any]], object] = lambda spec: None, label: bool = False) -> None:
    """A job whose pods have the sidecar of deploy/, except for `change`."""
    spec = copy.deepcopy(POD["spec"])
    spec["restartPolicy"] = "Never"
    spec["containers"][0]["image"] = "local/training:1"
    change(spec)
    template = {"metadata": {"labels": {"team": "a"}}, "spec": spec}
    api.world.apply(manifests.job(template=labelled(template) if label else template))


def annotate(api: FakeApi, **annotations: str) -> None:
    named = {f"gpufrag.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    api.world.get("batch/v1", "Job", "train")["metadata"]["annotations"] |= named


def monitor(api: FakeApi, namespace: str = "gpufrag", **spec: Any) -> None:
    body = copy.deepcopy(MONITOR)
    body["metadata"]["namespace"] = namespace
    api.world.apply({**body, "spec": {**body["spec"], **spec}})


def config_map(api: FakeApi, name: str, text: str = "", namespace: str = "gpufrag", **annotations: str) -> None:
    meta = {"name": name, "namespace": namespace, "annotations": annotations}
    api.world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"restarter.yaml": text}})


def install(api: FakeApi, available: int = 1, circuit: str = "", **policy: Any) -> None:
    """The restarter's objects, and the ConfigMap that every namespace has."""
    config_map(api, "kube-root-ca.crt", namespace="ml")
    config_map(api, "gpufrag-restarter-config", yaml.safe_dump({"policy": policy}))
    config_map(api, "gpufrag-restarter", **({"gpufrag.dev/circuit-open": circuit} if circuit else {}))
    deployment = manifests.deployment(replicas=available)
    deployment["metadata"] |= {"name": "gpufrag-restarter", "namespace": "gpufrag"}
    api.world.apply(deployment)


def test_rejected_token_fails_once(api):
    api.users.clear()
    results = look_at_all(api)
    assert list(results) == ["credentials"]
    assert "401" in text_of(results["credentials"], Fail)


def test_missing_namespace_fails_and_stops(api):
    install(api)
    assert isinstance(look(api, "namespace"), Ok)
    results = look_at_all(api, "nowhere")
    assert list(results) == ["credentials", "namespace"]
    assert "namespace nowhere does not exist" in text_of(results["namespace"], Fail)


def test_administrator_may_restart_everything(api):
    assert "Job.batch" in text_of(look(api, "permissions"), Ok)


def test_role_of_chart_is_enough_for_its_kinds(api):
    api.users[TOKEN] = User("restarter", tuple(role_rules([JOB, JOB_SET])), "ml")
    assert look(api, "permissions") == Ok("restarter may restart in ml: Job.batch, JobSet.jobset.x-k8s.io")


def test_missing_permission_is_named_with_its_purpose(api):
    rules = [rule for rule in role_rules([LEADER_WORKER_SET]) if rule["resources"] != ["pods/eviction"]]
    api.users[TOKEN] = User("restarter", tuple(rules), "ml")
    assert "create pods/eviction (" in text_of(look(api, "permissions"), Fail)


def test_role_without_kinds_restarts_nothing(api):
    api.users[TOKEN] = User("restarter", tuple(role_rules([])), "ml")
    assert "may restart nothing in ml" in text_of(look(api, "permissions"), Fail)


def test_labelled_pod_without_sidecar_fails(api):
    run_job(api, label=True)
    assert look(api, "injection") == Ok("2 labelled pod(s), all with the sidecar")
    api.world.apply(manifests.job(name="bare", template=labelled(manifests.job()["spec"]["template"])))
    assert "without the sidecar" in text_of(look(api, "injection"), Fail)


def test_no_pod_with_sidecar_warns_and_stops(api):
    install(api)
    api.world.apply(manifests.job())
    assert "no pod of ml has the sidecar" in text_of(look_at_all(api)["pods"], Warn)
    assert not look_at_all(api).keys() & {"sidecars", "volumes", "podmonitor", "jobs"}


def test_shipped_pod_is_fine(api):
    run_job(api)
    assert look(api, "pods") == Ok("2 pod(s) of ml have the sidecar")
    assert isinstance(look(api, "sidecars"), Ok)
    assert isinstance(look(api, "volumes"), Ok)


def test_sidecar_among_main_containers_warns(api):
    def bind(spec: dict[str, Any]) -> None:
        sidecar = spec["initContainers"].pop()
        del sidecar["restartPolicy"]
        spec["containers"].append(sidecar)

    run_job(api, bind)
    assert "a Job never completes" in text_of(look(api, "sidecars"), Warn)
    assert isinstance(look(api, "volumes"), Ok)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda spec: spec["containers"][0].update(volumeMounts=[]), Fail, "no container but the sidecar mounts"),
        (lambda spec: spec["initContainers"][1].update(volumeMounts=[]), Fail, "mounts no volume at /run/gpufrag"),
        (lambda spec: spec["containers"][0]["env"][0].update(value="/tmp"), Fail, "where GPUFRAG_DIR points"),
        (lambda spec: spec["volumes"][0].update(emptyDir={}), Warn, "not an emptyDir with `medium: Memory`"),
    ],
)
def test_folder_that_is_not_shared_is_reported(api, change, kind, text):
    run_job(api, change)
    assert text in text_of(look(api, "volumes"), kind)


@pytest.mark.parametrize(
    ("spec", "selected"),
    [
        ({}, True),
        (
            {"selector": {"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "team", "operator": "Exists"}]}},
            True,
        ),
        ({"selector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}}, True),
        ({"namespaceSelector": {"matchNames": ["ml"]}}, True),
        ({"selector": {"matchLabels": {"team": "b"}}}, False),
        ({"selector": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}}, False),
        ({"selector": {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}}, False),
        ({"namespaceSelector": {}}, False),
        ({"namespaceSelector": {"matchNames": ["other"]}}, False),
        ({"podMetricsEndpoints": [{"port": "metrics"}]}, False),
    ],
)
def test_pod_monitor_selection_follows_the_operator(api, spec, selected):
    run_job(api)
    monitor(api, **spec)
    if selected:
        assert look(api, "podmonitor") == Ok("all 2 pod(s) are selected by gpufrag-sidecars")
    else:
        assert "no PodMonitor selects it (gpufrag-sidecars)" in text_of(look(api, "podmonitor"), Fail)


def test_only_pod_monitors_that_select_are_named(api):
    run_job(api)
    monitor(api)
    monitor(api, "ml", selector={"matchLabels": {"team": "b"}})
    assert look(api, "podmonitor") == Ok("all 2 pod(s) are selected by gpufrag-sidecars")


def test_no_pod_monitor_warns(api):
    run_job(api)
    assert "no PodMonitor in ml or gpufrag" in text_of(look(api, "podmonitor"), Warn)


def test_jobs_that_opted_in_are_named(api):
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
def test_job_that_cannot_be_restarted_warns(api, annotations, text):
    run_job(api)
    annotate(api, **annotations)
    assert text in text_of(look(api, "jobs"), Warn)


def test_pod_without_job_warns(api):
    pod = copy.deepcopy(POD)
    pod["metadata"] = {"name": "alone", "namespace": "ml"}
    pod["spec"]["containers"][0]["image"] = "local/training:1"
    api.world.apply({**pod, "status": {"phase": "Running"}})
    assert "1 pod(s) belong to no job that can be restarted: " in text_of(look(api, "jobs"), Warn)


@pytest.mark.parametrize(("age_s", "kind"), [(7200, Fail), (60, Ok)])
def test_job_left_suspended_fails(api, age_s, kind):
    api.world.apply(manifests.job())
    at = datetime.fromtimestamp(NOW - age_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    annotate(api, restart_phase="suspended-by-gpufrag", restart_at=at)
    assert isinstance(look(api, "suspended"), kind)


@pytest.mark.parametrize(
    ("policy", "kind", "text"),
    [
        ({"namespaces": ["ml"], "dry_run": False}, Ok, "runs and restarts jobs in ml"),
        ({"namespaces": ["ml"], "dry_run": False, "available": 0}, Fail, "no ready pod"),
        ({"namespaces": ["ml"]}, Warn, "dry run"),
        ({"namespaces": ["ml"], "enabled": False}, Warn, "policy.enabled is false"),
        ({"namespaces": ["other"], "dry_run": False}, Warn, "does not contain ml"),
    ],
)
def test_restarter_state_is_reported(api, policy, kind, text):
    install(api, **policy)
    assert text in text_of(look(api, "restarter"), kind)


def test_restarter_that_is_not_installed_fails(api):
    config_map(api, "gpufrag-restarter-config", "{}")
    assert "is not installed" in text_of(look(api, "restarter"), Fail)


def test_open_circuit_warns_with_its_cause(api):
    install(api, circuit="3 restarts failed")
    assert "3 restarts failed" in text_of(look(api, "circuit"), Warn)


def circuit_rule() -> dict[str, Any]:
    shipped = (DEPLOY / "restarter" / "restarter.yaml").read_text()
    roles = [one for one in yaml.safe_load_all(shipped) if one and one["kind"] == "Role"]
    (rule,) = [rule for role in roles for rule in role["rules"] if rule["resources"] == ["configmaps"]]
    return dict(rule)


def test_shipped_role_may_open_the_circuit(api):
    install(api)
    assert tuple(circuit_rule()["verbs"]) == CIRCUIT.verbs
    api.users[TOKEN] = User("restarter", (circuit_rule(),), "gpufrag")
    assert look(api, "circuit") == Ok("closed")


@pytest.mark.parametrize("changes", [{"verbs": ["get"]}, {"resourceNames": ["gpufrag-restarter-config"]}])
def test_missing_permission_to_open_the_circuit_fails(api, changes):
    install(api)
    reads = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
    api.users[TOKEN] = User("restarter", (reads, {**circuit_rule(), **changes}), "gpufrag")
    found = text_of(look(api, "circuit"), Fail)
    assert "restarter may not patch ConfigMap gpufrag/gpufrag-restarter (" in found


def test_forbidden_check_is_unknown(api):
    api.users[TOKEN] = User("restarter", tuple(role_rules([JOB])), "ml")
    assert "cannot check this" in text_of(look(api, "restarter"), Unknown)


def test_doctor_only_reads(api):
    run_job(api)
    monitor(api)
    install(api, namespaces=["ml"])
    api.log.clear()
    assert len(look_at_all(api)) == len(CHECKS)
    assert {one.method for one in api.log if not one.path.endswith("reviews")} == {"GET"}
