"""What the clusters off Kubernetes share: the circuit is kept in a file, and there is nobody to evict or to review."""

from __future__ import annotations

import getpass
from typing import Any

from .commanded import owner
from .errors import Invalid
from .kubernetes.cluster import Body, Event, GroupKind, Owner, Pod, Ref
from .state_file import Entry, StateFile


class OffCluster:
    """A part of a Cluster."""

    def __init__(self, state: StateFile) -> None:
        self._state = state

    def stored(self, ref: Ref) -> Owner:
        """What is remembered under a name; it is always there, be it empty."""
        return self._stored(ref, self._state.get(key_of(ref)))

    def store(self, ref: Ref, body: Body, resource_version: str | None, dry_run: bool) -> Owner:
        version = None if resource_version is None else int(resource_version)
        return self._stored(ref, self._state.patch(key_of(ref), annotations_in(body), version, dry_run))

    def evict(self, pod: Pod, dry_run: bool = False) -> None:
        raise Invalid(f"{pod.ref}: nothing is evicted off Kubernetes")

    def create_event(self, event: Event) -> None:
        """The log and the page tell it; there is no other place."""

    def can_i(self, verb: str, kind: GroupKind, namespace: str, subresource: str = "", name: str = "") -> bool:
        return True

    def whoami(self) -> str:
        return getpass.getuser()

    def _stored(self, ref: Ref, entry: Entry) -> Owner:
        return owner(ref, entry.version, entry.annotations, {})


def key_of(ref: Ref) -> str:
    return f"{ref} {ref.uid}".rstrip()


def annotations_in(body: Body) -> dict[str, str | None]:
    """The only part of a merge patch that means something here. Raises Invalid for another."""
    metadata: Any = body.get("metadata", {})
    if set(body) - {"metadata"} or set(metadata) - {"annotations"}:
        raise Invalid("only annotations can be changed off Kubernetes")
    return dict(metadata.get("annotations", {}))
