"""From a pod to the object whose controller made it: by owner references and uids, never by names in labels."""

from __future__ import annotations

from dataclasses import dataclass

from .cluster import Cluster, Owner, Pod, Ref


@dataclass(frozen=True)
class Resolved:
    """The pod, who answers for it, and the references that were followed, the pod's own first."""

    owner: Owner
    pod: Pod
    chain: tuple[Ref, ...]


def resolve(cluster: Cluster, namespace: str, pod_name: str, pod_uid: str | None = None) -> Resolved:
    """The topmost owner that can be acted upon. Raises Refused, or ClusterError."""
    raise NotImplementedError
