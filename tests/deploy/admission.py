"""A mutating admission policy applied to a pod as a Kubernetes 1.36 API server does, with its answers as observed.

CEL's own library evaluates CEL. Typed Objects are read as maps, so unknown fields are found by the strict schema of the
resulting pod. Observed on a real server: an ApplyConfiguration with an atomic list or map fails the policy, and a
volume with two sources makes the server refuse the pod (422).
"""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from manifests import NEWEST, Manifest, check

Spec = dict[str, Any]


class PolicyFailed(Exception):
    """The policy cannot be applied. With failurePolicy Ignore the pod starts unchanged."""


class PodRefused(Exception):
    """The server answers 422."""


def evaluate(expression: str, pod: Manifest) -> Any:
    cel = pytest.importorskip("cel_expr_python.cel", reason="cel-expr-python: pip install -e .[deploy]")
    from cel_expr_python.ext import ext_optional, ext_strings

    maps = re.sub(r"(Object[.\w]*|JSONPatch)\{", "{", expression)
    maps = re.sub(r"([{,]\s*)(\w+):", r'\1"\2":', maps)
    extensions = [ext_optional.ExtOptional(), ext_strings.ExtStrings()]
    environment = cel.NewEnv(variables={"object": cel.Type.DYN}, extensions=extensions)
    return environment.compile(" ".join(maps.split())).eval(data={"object": pod}).plain_value()


def mutate(policy: Spec, pod: Manifest) -> Manifest:
    """Return the pod that the server stores. Raises PolicyFailed or PodRefused."""
    wanted = policy["matchConstraints"]["objectSelector"]["matchLabels"]
    labels = pod["metadata"].get("labels", {})
    conditions = [evaluate(row["expression"], pod) for row in policy["matchConditions"]]
    if not wanted.items() <= labels.items() or not all(conditions):
        return pod
    for mutation in policy["mutations"]:
        if mutation["patchType"] == "ApplyConfiguration":
            configuration = evaluate(mutation["applyConfiguration"]["expression"], pod)
            reject_atomic(configuration, schema("io.k8s.api.core.v1.Pod"), "")
            pod = merged(pod, configuration, schema("io.k8s.api.core.v1.Pod"))
        else:
            pod = patched(pod, evaluate(mutation["jsonPatch"]["expression"], pod))
    for volume in pod["spec"].get("volumes", []):
        if len(volume) > 2:
            raise PodRefused(f"spec.volumes {volume['name']}: may not specify more than 1 volume type")
    check([pod], NEWEST)
    return pod


@cache
def definitions() -> dict[str, Any]:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate: pip install -e .[deploy]")
    (folder,) = (Path(validate.__file__).parent / "kubernetes-json-schema").glob(f"v{NEWEST}.*-local")
    found: dict[str, Any] = json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))["$defs"]
    return found


def schema(name: str) -> Spec:
    found: Spec = definitions()[name]
    return found


def resolved(node: Spec) -> Spec:
    """Follow a reference, keeping the annotations next to it."""
    reference = node.get("$ref", "") or next((row["$ref"] for row in node.get("allOf", []) if "$ref" in row), "")
    return {**schema(reference.rpartition("/")[2]), **node} if reference else node


def reject_atomic(value: Any, node: Spec, where: str) -> None:
    """Lists are atomic unless the schema marks them otherwise; so are marked maps."""
    node = resolved(node)
    atomic = isinstance(value, list) and node.get("x-kubernetes-list-type", "atomic") == "atomic"
    if atomic or (isinstance(value, dict) and node.get("x-kubernetes-map-type") == "atomic"):
        raise PolicyFailed(f"invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {where}")
    if isinstance(value, dict):
        for key, inner in value.items():
            properties = node.get("properties", {})
            reject_atomic(inner, properties.get(key, node.get("additionalProperties", {})), f"{where}.{key}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            reject_atomic(inner, node["items"], f"{where}[{place}]")


def merged(live: Any, configuration: Any, node: Spec) -> Any:
    """Server-side apply: maps are merged, lists of named things by their keys, everything else is replaced."""
    node = resolved(node)
    if isinstance(live, dict) and isinstance(configuration, dict):
        properties, rest = node.get("properties", {}), node.get("additionalProperties", {})
        changed = {k: merged(live.get(k), v, properties.get(k, rest)) for k, v in configuration.items()}
        return {**live, **changed}
    if isinstance(live, list) and isinstance(configuration, list):
        keys = node["x-kubernetes-list-map-keys"]
        found = {tuple(row.get(key) for key in keys): row for row in live}
        for row in configuration:
            key = tuple(row.get(key) for key in keys)
            found[key] = merged(found.get(key), row, node["items"])
        return list(found.values())
    return configuration


def patched(pod: Manifest, operations: list[Spec]) -> Manifest:
    pod = copy.deepcopy(pod)
    for operation in operations:
        assert operation["op"] == "add"
        *above, last = operation["path"].strip("/").split("/")
        inner: Any = pod
        for key in above:
            if key not in inner:
                raise PolicyFailed(f"jsonPatch: add operation does not apply: doc is missing path {operation['path']}")
            inner = inner[key]
        value = copy.deepcopy(operation["value"])
        if last == "-":
            inner.append(value)
        else:
            inner[last] = value
    return pod
