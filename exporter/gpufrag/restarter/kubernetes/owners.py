"""From a pod to the object whose controller made it: by owner references and uids, never by names in labels."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from ..errors import NotFound, Refused
from .cluster import Cluster, GroupKind, Owner, Pod, Ref
from .kinds import JOB, RESOURCES
from .objects import controller_of
from .targets import TARGETS, Target

MAX_HOPS = 5
"""A worker pod of a LeaderWorkerSet is four away from it; more than five is nothing that we know."""


@dataclass(frozen=True)
class Resolved:
    """The pod, who answers for it, and the references that were followed, the pod's own first."""

    owner: Owner
    pod: Pod
    chain: tuple[Ref, ...]


def resolve(
    cluster: Cluster,
    namespace: str,
    pod_name: str,
    pod_uid: str | None = None,
    targets: Mapping[GroupKind, Target] = TARGETS,
) -> Resolved:
    """The topmost owner of a kind that is known. Raises Refused, or ClusterError.

    `pod_uid` is the uid that the alert tells of, where it does: a later pod of that name is another one.
    """
    pod = _pod(cluster, namespace, pod_name, pod_uid)
    owners = _climb(cluster, pod, RESOURCES.keys() | targets.keys())
    chain = tuple(owner.ref for owner in owners)
    for owner in reversed(owners):
        if owner.group_kind in targets:
            return Resolved(owner, pod, chain)
    raise _nobody(pod, chain)


def _pod(cluster: Cluster, namespace: str, name: str, uid: str | None) -> Pod:
    try:
        pod = cluster.get_pod(namespace, name)
    except NotFound:
        raise Refused("pod-gone", f"pod {namespace}/{name} is gone: the alert is older than that") from None
    if uid is not None and pod.uid != uid:
        raise Refused("pod-replaced", f"pod {namespace}/{name} is another one than the alert tells of: its uid differs")
    return pod


def _climb(cluster: Cluster, pod: Pod, known: Set[GroupKind]) -> list[Owner]:
    """All owners of known kinds, the nearest first; what is above a kind that is not known is not looked at."""
    owners: list[Owner] = []
    above = controller_of(pod.owner_references, pod.namespace)
    while above is not None and above.group_kind in known:
        if len(owners) == MAX_HOPS:
            raise Refused("chain-too-long", f"pod {pod.namespace}/{pod.name} has over {MAX_HOPS} owners in a row")
        owner = _owner(cluster, above)
        owners.append(owner)
        above = controller_of(owner.raw["metadata"].get("ownerReferences"), pod.namespace)
    return owners


def _owner(cluster: Cluster, ref: Ref) -> Owner:
    gone = Refused("owner-gone", f"{ref} with uid {ref.uid} is gone: its pods will follow it")
    if not ref.uid:  # which would mean any
        raise gone
    try:
        return cluster.get_owner(ref)
    except NotFound:
        raise gone from None


def _nobody(pod: Pod, chain: tuple[Ref, ...]) -> Refused:
    name = f"pod {pod.namespace}/{pod.name}"
    nearest = controller_of(pod.owner_references, pod.namespace)
    if nearest is None:
        return Refused(
            "bare-pod",
            f"{name} has no controller that would make it again: run it as a {JOB}, or restart it by hand",
        )
    what = chain[-1] if chain else nearest
    known = ", ".join(sorted(map(str, TARGETS)))
    return Refused("unknown-kind", f"{name} belongs to {what}, which is not restarted; known are {known}")
