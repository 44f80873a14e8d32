"""The admission policies, applied as an API server does."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.admission import PodRefused, PolicyFailed, evaluate, mutate, patched
from manifests import KUBERNETES, Manifest, check, documents, read, restricted, template

pytestmark = pytest.mark.real

OURS = "/gpufrag/gpufrag/shim"
FROM_A_FIELD = {"name": "PYTHONPATH", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
COMPONENT = read(KUBERNETES / "sidecar" / "pod.yaml")["spec"]


@pytest.fixture(scope="module")
def policies() -> dict[str, Manifest]:
    return {row["kind"]: row["spec"] for row in documents(template("injection.enabled=true")) if "spec" in row}


@pytest.fixture(scope="module")
def policy(policies) -> Manifest:
    return policies["MutatingAdmissionPolicy"]


def pod(*containers: dict[str, Any], label: str = "true", **spec: Any) -> Manifest:
    rows = [{"image": "any", **container} for container in containers or ({"name": "main"},)]
    metadata = {"name": "any", "labels": {"gpufrag.dev/inject": label}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": rows, **spec}}


def names(rows: list[Manifest]) -> list[str]:
    return [row["name"] for row in rows]


def test_pod_gets_the_sidecar_of_the_component(policy):
    """Without the liveness probe, which was not tried in a policy."""
    spec = mutate(policy, pod({"name": "any"}))["spec"]
    wanted = [{k: v for k, v in row.items() if k != "livenessProbe"} for row in COMPONENT["initContainers"]]
    wanted[1]["ports"] = [{**port, "protocol": "TCP"} for port in wanted[1]["ports"]]
    assert spec["initContainers"] == wanted
    assert spec["volumes"] == COMPONENT["volumes"]
    assert spec["containers"] == [{"image": "any", **COMPONENT["containers"][0]}]


def test_pod_keeps_its_own_init_containers_and_volumes(policy):
    own = pod(
        {"name": "main", "env": [{"name": "A", "value": "b"}], "volumeMounts": [{"name": "data", "mountPath": "/d"}]},
        initContainers=[{"name": "prepare", "image": "any"}],
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    spec = mutate(policy, own)["spec"]
    assert names(spec["initContainers"]) == ["prepare", "gpufrag-agent", "gpufrag-sidecar"]
    assert names(spec["volumes"]) == ["data", "gpufrag-samples", "gpufrag-agent", "gpufrag-checkpoint"]
    assert names(spec["containers"][0]["env"]) == ["A", "GPUFRAG_DIR", "PYTHONPATH"]
    assert names(spec["containers"][0]["volumeMounts"]) == ["data", "gpufrag-agent", "gpufrag-samples"]


@pytest.mark.parametrize(
    "unchanged",
    [
        pod(label="false"),
        pod(initContainers=[{"name": "gpufrag-sidecar", "image": "any"}]),
        pod(volumes=[{"name": "gpufrag-samples", "hostPath": {"path": "/x"}}]),
        pod(volumes=[{"name": "gpufrag-checkpoint", "emptyDir": {}}]),
    ],
    ids=["no label", "has the sidecar", "has a volume of our name", "has another volume of our name"],
)
def test_pod_is_left_unchanged(policy, unchanged):
    assert mutate(policy, unchanged) == unchanged


def test_containers_satisfy_a_quota_on_cpu_and_memory(policy):
    for container in mutate(policy, pod())["spec"]["initContainers"]:
        for kind in ("requests", "limits"):
            assert container["resources"][kind].keys() == {"cpu", "memory"}


@pytest.mark.parametrize(
    ("env", "value"),
    [
        ([], OURS),
        ([{"name": "A", "value": "b"}], OURS),
        ([{"name": "PYTHONPATH", "value": "/app:/lib"}], f"{OURS}:/app:/lib"),
        ([{"name": "PYTHONPATH"}], OURS),  # an empty entry would mean the working directory
        ([{"name": "MY_PYTHONPATH", "value": "/app"}], OURS),
        ([FROM_A_FIELD], None),
    ],
    ids=["no env", "other env", "set", "empty", "another name", "from a field"],
)
def test_python_path_of_container_is_kept(policy, env, value):
    (main,) = mutate(policy, pod({"name": "main", "env": env}))["spec"]["containers"]
    assert next((row.get("value") for row in main["env"] if row["name"] == "PYTHONPATH"), None) == value


def test_pod_stays_restricted(policy):
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert restricted(mutate(policy, pod({"name": "main", "securityContext": security}))) == []


def test_failed_policy_leaves_pod_and_warns(policies, policy):
    assert policy["failurePolicy"] == "Ignore"
    validation = policies["ValidatingAdmissionPolicy"]
    (rule,) = validation["validations"]
    assert [evaluate(rule["expression"], one) for one in (pod(), mutate(policy, pod()))] == [False, True]
    assert validation["matchConstraints"] == policy["matchConstraints"]
    assert policies["ValidatingAdmissionPolicyBinding"]["validationActions"] == ["Warn", "Audit"]


APPLY = "Object{{spec: Object.spec{{initContainers: [Object.spec.initContainers{{name: 'a', {}}}]}}}}"


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ("command: ['x']", r"initContainers\[0\].command"),
        ("args: ['x']", r"initContainers\[0\].args"),
        (
            "securityContext: Object.spec.initContainers.securityContext{"
            "capabilities: Object.spec.initContainers.securityContext.capabilities{drop: ['ALL']}}",
            r"initContainers\[0\].securityContext.capabilities.drop",
        ),
    ],
)
def test_server_refuses_atomic_lists_in_apply_configuration(policy, field, place):
    mutation = {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": APPLY.format(field)}}
    with pytest.raises(PolicyFailed, match=f"may not mutate atomic arrays, maps or structs: .spec.{place}"):
        mutate({**policy, "mutations": [mutation]}, pod())


def test_server_refuses_volume_with_two_sources(policy):
    conditions = [row for row in policy["matchConditions"] if "volume" not in row["name"]]
    own = pod(volumes=[{"name": "gpufrag-samples", "hostPath": {"path": "/x"}}])
    with pytest.raises(PodRefused, match="more than 1 volume type"):
        mutate({**policy, "matchConditions": conditions}, own)


def test_server_refuses_append_to_a_missing_list():
    with pytest.raises(PolicyFailed, match="missing path"):
        patched(pod(), [{"op": "add", "path": "/spec/initContainers/-", "value": {}}])


def test_policies_fit_the_schemas():
    rows = documents(template("injection.enabled=true", "injection.namespaceLabels.team=ml"))
    kinds = ("MutatingAdmissionPolicy", "ValidatingAdmissionPolicy")
    found = [row for row in rows if row["kind"].startswith(kinds)]
    assert [row["spec"].get("policyName", "") for row in found if "Binding" in row["kind"]] == [
        "gpufrag-sidecar",
        "gpufrag-sidecar-missing",
    ]
    check(found, "1.37")
