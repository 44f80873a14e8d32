"""From a pod to the object whose controller created it: by owner references and uids, never by labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import reasons
from ..backend import NotFound
from ..reasons import Refused
from .objects import CRON_JOB, RESOURCES, Owner, Pod, Ref, controller_of
from .targets import TARGETS

if TYPE_CHECKING:
    from .client import KubernetesClient

MAX_OWNERS = 5
"""A worker pod of a LeaderWorkerSet has four levels of owners."""


@dataclass(frozen=True)
class Resolved:
    """The pod, and its topmost owner."""

    owner: Owner
    pod: Pod


def resolve(client: KubernetesClient, namespace: str, pod_name: str, pod_uid: str | None = None) -> Resolved:
    """Return the owner whose controller restarts the pod. Raises Refused or BackendError.

    The topmost owner must be of a supported kind: a controller above it would undo the change. Raises Refused if the
    pod no longer has `pod_uid`.
    """
    try:
        pod = client.get_pod(namespace, pod_name)
    except NotFound:
        raise Refused(reasons.POD_GONE, f"pod {namespace}/{pod_name}") from None
    if pod_uid is not None and pod.uid != pod_uid:
        raise Refused(reasons.POD_REPLACED, f"pod {namespace}/{pod_name}")
    owner: Owner | None = None
    above = controller_of(pod.owner_references, namespace)
    for _ in range(MAX_OWNERS):
        if above is None or above.group_kind == CRON_JOB:  # it creates Jobs, and changes none
            break
        if above.group_kind not in RESOURCES:
            raise Refused(reasons.UNKNOWN_CONTROLLER, str(above))
        owner = _get(client, above)
        above = controller_of(owner.raw["metadata"].get("ownerReferences"), namespace)
    else:
        if above is not None:
            raise Refused(reasons.TOO_MANY_OWNERS, f"pod {namespace}/{pod_name}")
    if owner is None:
        raise Refused(reasons.BARE_POD, f"pod {namespace}/{pod_name}")
    if owner.group_kind not in TARGETS:
        raise Refused(reasons.UNKNOWN_CONTROLLER, str(owner.ref))
    return Resolved(owner, pod)


def _get(client: KubernetesClient, ref: Ref) -> Owner:
    try:
        if ref.uid:  # an empty one would match any object
            return client.get_owner(ref)
    except NotFound:
        pass
    raise Refused(reasons.JOB_GONE, str(ref))
