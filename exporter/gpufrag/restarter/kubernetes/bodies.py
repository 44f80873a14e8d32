"""The bodies of the requests that make objects. Merge patches are made by `steps`."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from .cluster import Event, GroupKind, Pod, Ref
from .kinds import COMMAND, EVENT, EVICTION, RESOURCES, group_version

CONTROLLER = "gpufrag.dev/restarter"
MAX_NOTE = 1024
MAX_REASON = 128


def event(what: Event, instance: str) -> dict[str, Any]:
    """`instance`: which restarter says so; its pod's name, where it runs in one."""
    return {
        "apiVersion": group_version(EVENT),
        "kind": EVENT.kind,
        "metadata": {"generateName": "gpufrag-", "namespace": what.regarding.namespace},
        "eventTime": micro_time(what.at_s),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:MAX_REASON],
        "action": what.action[:MAX_REASON],
        "reason": what.reason[:MAX_REASON],
        "type": "Warning" if what.warning else "Normal",
        "note": _cut(what.note),
        "regarding": _object_reference(what.regarding),
        **({"related": _object_reference(what.related)} if what.related else {}),
    }


def eviction(pod: Pod) -> dict[str, Any]:
    """Of this pod alone: one that has taken its name since is left alone."""
    return {
        "apiVersion": "policy/v1",
        "kind": EVICTION.kind,
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }


def command(job: Ref, action: str, name: str) -> dict[str, Any]:
    """Volcano finds the job by `target`; the owner reference removes the command with the job.

    It does not block the owner's deletion: where the server enforces it, that takes a permission on finalizers.
    """
    reference = {
        "apiVersion": job.group_version,
        "kind": job.kind,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
    }
    return {
        "apiVersion": group_version(COMMAND),
        "kind": COMMAND.kind,
        "metadata": {"name": name, "namespace": job.namespace, "ownerReferences": [reference]},
        "target": reference,
        "action": action,
    }


def access_review(verb: str, kind: GroupKind, namespace: str, subresource: str, name: str = "") -> dict[str, Any]:
    """May I do this here, to the object `name` or, without one, to any?"""
    attributes = {"verb": verb, "group": kind.group, "resource": RESOURCES[kind].plural, "namespace": namespace}
    attributes |= {key: value for key, value in (("subresource", subresource), ("name", name)) if value}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }


def subject_review() -> dict[str, Any]:
    """Who am I?"""
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}


def micro_time(at_s: float) -> str:
    """Unix seconds as Kubernetes writes them with microseconds."""
    return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _object_reference(ref: Ref) -> dict[str, str]:
    return {
        "apiVersion": ref.group_version,
        "kind": ref.kind,
        "namespace": ref.namespace,
        "name": ref.name,
        "uid": ref.uid,
    }


def _cut(note: str) -> str:
    return note if len(note) <= MAX_NOTE else note[: MAX_NOTE - 1] + "…"
