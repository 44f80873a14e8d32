"""What a pod's spec says of our sidecar. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

SIDECAR, PORT = "gpufrag-sidecar", "gpufrag"
FOLDER, VARIABLE = "/run/gpufrag", "GPUFRAG_DIR"
Spec = Mapping[str, Any]


class Sidecar(NamedTuple):
    """Our container in a pod. `native`: an init container that stays, so that a Job can end beside it."""

    container: Spec
    native: bool


def sidecar_of(pod: Spec) -> Sidecar | None:
    """By its name, or by the name of its port; None in a pod without one."""
    spec = pod.get("spec") or {}
    for container in spec.get("initContainers") or ():
        if _is_ours(container):
            return Sidecar(container, container.get("restartPolicy") == "Always")
    return next((Sidecar(one, False) for one in spec.get("containers") or () if _is_ours(one)), None)


def _is_ours(container: Spec) -> bool:
    return container.get("name") == SIDECAR or PORT in ports(container)


def ports(container: Spec) -> tuple[str, ...]:
    """Those that have a name."""
    return tuple(port["name"] for port in container.get("ports") or () if port.get("name"))


def volume_trouble(pod: Spec, sidecar: Sidecar) -> str | None:
    """What is wrong with the folder that joins sidecar and ranks; None where nothing is."""
    name = _volume_at_folder(sidecar.container)
    if name is None:
        return f"its sidecar mounts no volume at {folder(sidecar.container)}"
    others = [one for one in pod["spec"].get("containers") or () if one is not sidecar.container]
    sharing = [one for one in others if name in _mounted(one)]
    if not sharing:
        return f"no container but the sidecar mounts the volume {name}"
    if all(_volume_at_folder(one) != name for one in sharing):
        return f"the volume {name} is mounted elsewhere than where {VARIABLE} points"
    return None if _in_memory(pod, name) else f"the volume {name} is no emptyDir with `medium: Memory`"


def folder(container: Spec) -> str:
    told = {one["name"]: one.get("value") for one in container.get("env") or ()}
    return told.get(VARIABLE) or FOLDER


def _volume_at_folder(container: Spec) -> str | None:
    where = folder(container).rstrip("/")
    mounts = container.get("volumeMounts") or ()
    return next((one["name"] for one in mounts if one["mountPath"].rstrip("/") == where), None)


def _mounted(container: Spec) -> set[str]:
    return {one["name"] for one in container.get("volumeMounts") or ()}


def _in_memory(pod: Spec, name: str) -> bool:
    volumes: Iterator[Spec] = (one for one in pod["spec"].get("volumes") or () if one["name"] == name)
    return any((one.get("emptyDir") or {}).get("medium") == "Memory" for one in volumes)
