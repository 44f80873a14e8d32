"""The sidecar in a pod template, and whether a PodMonitor selects a pod. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..restarter.kubernetes.objects import Owner

SIDECAR, PORT = "gpufrag-sidecar", "gpufrag"
FOLDER, VARIABLE = "/run/gpufrag", "GPUFRAG_DIR"
SHIM = "gpufrag/shim"
INJECT = "gpufrag.dev/inject"
Spec = Mapping[str, Any]
Labels = Mapping[str, str]


class Sidecar(NamedTuple):
    container: Spec
    native: bool
    """Whether it is an init container with restartPolicy: Always, so that a Job can complete."""


def sidecar_of(pod: Spec) -> Sidecar | None:
    """Return the sidecar, found by its name or the name of its port."""
    spec = pod.get("spec") or {}
    for container in spec.get("initContainers") or ():
        if _is_sidecar(container):
            return Sidecar(container, container.get("restartPolicy") == "Always")
    return next((Sidecar(one, False) for one in spec.get("containers") or () if _is_sidecar(one)), None)


def _is_sidecar(container: Spec) -> bool:
    return container.get("name") == SIDECAR or PORT in port_names(container)


def port_names(container: Spec) -> tuple[str, ...]:
    return tuple(port["name"] for port in container.get("ports") or () if port.get("name"))


def main_containers(pod: Spec, sidecar: Sidecar) -> list[Spec]:
    return [one for one in pod["spec"].get("containers") or () if one is not sidecar.container]


def volume_problem(pod: Spec, sidecar: Sidecar) -> str | None:
    """Return what is wrong with the folder shared by the sidecar and the ranks."""
    name = _volume_at_folder(sidecar.container)
    if name is None:
        return f"its sidecar mounts no volume at {_folder(sidecar.container)}"
    sharing = [
        one
        for one in main_containers(pod, sidecar)
        if name in {mount["name"] for mount in one.get("volumeMounts") or ()}
    ]
    if not sharing:
        return f"no container but the sidecar mounts the volume {name}"
    if all(_volume_at_folder(one) != name for one in sharing):
        return f"the volume {name} is not mounted where {VARIABLE} points"
    volume: Spec = next((one for one in pod["spec"].get("volumes") or () if one["name"] == name), {})
    in_memory = (volume.get("emptyDir") or {}).get("medium") == "Memory"
    return None if in_memory else f"the volume {name} is not an emptyDir with `medium: Memory`"


def environment(container: Spec) -> dict[str, str]:
    return {one["name"]: one.get("value") or "" for one in container.get("env") or ()}


def _folder(container: Spec) -> str:
    return environment(container).get(VARIABLE) or FOLDER


def _volume_at_folder(container: Spec) -> str | None:
    where = _folder(container).rstrip("/")
    mounts = container.get("volumeMounts") or ()
    return next((one["name"] for one in mounts if one["mountPath"].rstrip("/") == where), None)


def selects(monitor: Owner, pod: Owner, ports: tuple[str, ...]) -> bool:
    """Return whether a PodMonitor selects a port of a pod: by namespace, labels and port name, like the operator."""
    chosen = monitor.spec.get("namespaceSelector") or {}
    endpoints = monitor.spec.get("podMetricsEndpoints") or ()
    return (
        (bool(chosen.get("any")) or pod.namespace in (chosen.get("matchNames") or [monitor.namespace]))
        and _matches(monitor.spec.get("selector") or {}, pod.labels)
        and any(endpoint.get("port") in ports for endpoint in endpoints)
    )


def _matches(selector: Spec, labels: Labels) -> bool:
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _OPERATORS[one["operator"]](labels.get(one["key"]), one.get("values") or ())
        for one in selector.get("matchExpressions") or ()
    )


_OPERATORS: Mapping[str, Callable[[str | None, Any], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, values: value is not None,
    "DoesNotExist": lambda value, values: value is None,
}
