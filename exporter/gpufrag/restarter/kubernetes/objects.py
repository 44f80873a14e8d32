"""What an API server sends, as our records: no other module reads its metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import Away
from .cluster import Body, GroupKind, Owner, Pod, Ref, group_of
from .kinds import RAY_JOB, VOLCANO_JOB, WORKFLOW

FINAL_CONDITIONS = ("Complete", "Completed", "Succeeded", "Failed", "FailureTarget", "SuccessCriteriaMet")
FINAL_VOLCANO = ("Aborting", "Aborted", "Completing", "Completed", "Terminating", "Terminated", "Failed")


def pod_from(raw: Any) -> Pod:
    """Raises Away for what is no pod."""
    meta = _metadata(raw)
    status = raw.get("status") or {}
    return Pod(
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta["uid"],
        owner_references=tuple(meta.get("ownerReferences") or ()),
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        phase=status.get("phase", ""),
        ready=holds(raw, "Ready"),
        deleting="deletionTimestamp" in meta,
        ip=status.get("podIP"),
    )


def owner_from(raw: Any, group_version: str, kind: str) -> Owner:
    """Raises Away for what is no object; a list's items do not name their kind, so the caller does."""
    meta = _metadata(raw)
    return Owner(
        group_version=group_version,
        kind=kind,
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        annotations=meta.get("annotations") or {},
        labels=meta.get("labels") or {},
        finished=_finished(GroupKind(group_of(group_version), kind), raw),
        deleting="deletionTimestamp" in meta,
        raw=raw,
    )


def controller_of(references: Any, namespace: str) -> Ref | None:
    """The one owner that controls the object, or None. It is of the same namespace: that is how owners work."""
    for one in references or ():
        if one.get("controller"):
            return Ref(one["apiVersion"], one["kind"], namespace, one["name"], one["uid"])
    return None


def holds(raw: Body, condition: str) -> bool:
    """Whether the object's status says True of a condition."""
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == condition and one.get("status") == "True" for one in conditions)


def _finished(kind: GroupKind, raw: Body) -> bool:
    by_phase = _FINISHED.get(kind)
    if by_phase is not None:
        return by_phase(raw.get("status") or {})
    return any(holds(raw, condition) for condition in FINAL_CONDITIONS)


_FINISHED: Mapping[GroupKind, Callable[[Body], bool]] = {
    RAY_JOB: lambda status: status.get("jobDeploymentStatus") in ("Complete", "Failed"),
    VOLCANO_JOB: lambda status: (status.get("state") or {}).get("phase") in FINAL_VOLCANO,
    WORKFLOW: lambda status: status.get("phase") in ("Succeeded", "Failed", "Error"),
}


def _metadata(raw: Any) -> Mapping[str, Any]:
    meta = raw.get("metadata") if isinstance(raw, Mapping) else None
    if not isinstance(meta, Mapping) or not {"name", "uid", "resourceVersion"} <= meta.keys():
        raise Away("the API server answered what is no object: is it one? Look at the address that it is reached by")
    return meta
