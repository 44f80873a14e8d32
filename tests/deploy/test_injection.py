"""The admission policy, its CEL evaluated by CEL's own library on pods as an API server would hand them over.

What differs from an API server: an Object there is typed; here it is read as a map, so that a field that pods do not
have is found by the schema of the pod that comes out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from manifests import KUBERNETES, NEWEST, Manifest, check, documents, read, restricted, template

pytestmark = pytest.mark.real

FROM_A_FIELD = {"name": "PYTHONPATH", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
Env = list[dict[str, Any]]


@pytest.fixture(scope="module")
def policy() -> Manifest:
    rows = documents(template("injection.enabled=true"))
    return next(row["spec"] for row in rows if row["kind"] == "MutatingAdmissionPolicy")


def evaluated(expression: str, pod: Manifest) -> Any:
    cel = pytest.importorskip("cel_expr_python.cel", reason="cel-expr-python: pip install -e .[deploy]")
    from cel_expr_python.ext import ext_optional, ext_strings

    as_map = re.sub(r"([{,]\s*)(\w+):", r'\1"\2":', re.sub(r"Object[.\w]*\{", "{", expression))
    extensions = [ext_optional.ExtOptional(), ext_strings.ExtStrings()]
    environment = cel.NewEnv(variables={"object": cel.Type.DYN}, extensions=extensions)
    return environment.compile(" ".join(as_map.split())).eval(data={"object": pod}).plain_value()


def applied(policy: Manifest, *containers: Manifest) -> Manifest:
    """What is merged into a pod with these containers."""
    (mutation,) = policy["mutations"]
    spec = evaluated(mutation["applyConfiguration"]["expression"], {"spec": {"containers": list(containers)}})["spec"]
    assert isinstance(spec, dict)
    return spec


def python_path(policy: Manifest, env: Env | None) -> str | None:
    container = {"name": "main"} | ({} if env is None else {"env": env})
    found = applied(policy, container)["containers"]
    return found[0]["env"][1]["value"] if found else None


def named(rows: Sequence[Manifest]) -> dict[str, Manifest]:
    return {row["name"]: row for row in rows}


OURS = "/gpufrag/gpufrag/shim"


@pytest.mark.parametrize(
    ("env", "value"),
    [
        (None, OURS),
        ([{"name": "A", "value": "b"}], OURS),
        ([{"name": "PYTHONPATH", "value": "/app:/lib"}], f"{OURS}:/app:/lib"),
        ([{"name": "PYTHONPATH"}], OURS),  # an empty entry would mean the working folder
        ([{"name": "MY_PYTHONPATH", "value": "/app"}], OURS),
        ([FROM_A_FIELD], None),
    ],
    ids=["no env", "other env", "set", "empty", "another name", "from a field"],
)
def test_what_a_container_has_on_its_path_stays(policy, env, value):
    assert python_path(policy, env) == value


def test_every_container_gets_an_agent(policy):
    found = applied(policy, {"name": "a"}, {"name": "b", "env": [FROM_A_FIELD]}, {"name": "c"})
    assert [row["name"] for row in found["containers"]] == ["a", "c"]


def test_a_pod_that_has_the_sidecar_is_left_alone(policy):
    (condition,) = policy["matchConditions"]
    ready = {"spec": {"containers": [], "initContainers": [{"name": "gpufrag-sidecar"}]}}
    others = {"spec": {"containers": [], "initContainers": [{"name": "prepare"}]}}
    cases = (ready, others, {"spec": {"containers": []}})
    assert [evaluated(condition["expression"], pod) for pod in cases] == [False, True, True]


def test_it_is_the_sidecar_of_the_component(policy):
    """Of which it leaves out what was not seen to work in a policy: quantities, and a port by its name."""
    wanted = read(KUBERNETES / "sidecar" / "pod.yaml")["spec"]
    found = applied(policy, {"name": "any"})
    for name, row in named(found["initContainers"]).items():
        component = named(wanted["initContainers"])[name]
        ports = [{**port, "protocol": "TCP"} for port in component.get("ports", [])]
        both = {**component, "ports": ports} if ports else component
        assert row == {key: value for key, value in both.items() if key not in ("resources", "livenessProbe")}
    assert [row["name"] for row in found["initContainers"]] == list(named(wanted["initContainers"]))
    assert found["containers"] == wanted["containers"]


def test_the_pod_that_comes_out_is_one(policy):
    spec = applied(policy, {"name": "main"})
    spec["containers"][0] |= {
        "image": "any",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    check([pod], NEWEST)
    assert restricted(pod) == []


def test_a_pod_that_it_fails_for_starts_as_it_is(policy):
    assert policy["failurePolicy"] == "Ignore"
    assert policy["matchConstraints"]["objectSelector"] == {"matchLabels": {"gpufrag.dev/inject": "true"}}
