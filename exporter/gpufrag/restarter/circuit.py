"""The circuit over all jobs: restarts that fail, or come too often, open it, and only a person closes it.

It is kept in the annotations of one ConfigMap, so that it survives a restart of the receiver, and two receivers share
it. A person closes it with `POST /v1/circuit/close`, or by removing `gpufrag.dev/circuit-open`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from ..errors import Unavailable
from .errors import ClusterError, Conflict
from .kubernetes.cluster import ANNOTATIONS, Cluster, Ref
from .record import read_times, write_times
from .settings import PolicySettings

OPEN = f"{ANNOTATIONS}/circuit-open"
FAILURES = f"{ANNOTATIONS}/circuit-failures"
BEGUN = f"{ANNOTATIONS}/circuit-restarts"
HOUR_S = 3600.0
_TRIES = 10


@dataclass(frozen=True)
class Circuit:
    """What is remembered over all jobs; times are Unix seconds."""

    opened: str | None = None
    """Why it is open."""
    failures_s: tuple[float, ...] = ()
    begun_s: tuple[float, ...] = ()
    """When the restarts of the last hour began."""

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> Circuit:
        """Never raises; any text at all in `circuit-open` opens it."""
        return cls(
            annotations.get(OPEN) or None,
            read_times(annotations.get(FAILURES, "")),
            read_times(annotations.get(BEGUN, "")),
        )

    def annotations(self) -> dict[str, str | None]:
        """For a merge patch: None removes one."""
        return {OPEN: self.opened, FAILURES: write_times(self.failures_s), BEGUN: write_times(self.begun_s)}

    def begun_in_hour(self, now_s: float) -> int:
        return sum(now_s - at < HOUR_S for at in self.begun_s)

    def begun(self, now_s: float) -> Circuit:
        return replace(self, begun_s=(*(at for at in self.begun_s if now_s - at < HOUR_S), now_s))

    def failed(self, now_s: float, what: str, settings: PolicySettings) -> Circuit:
        """With one more restart that failed or did not help; the last of too many opens it."""
        failures = (*(at for at in self.failures_s if now_s - at < settings.circuit_window), now_s)
        many = len(failures) >= settings.circuit_failures
        why = f"{len(failures)} restarts failed or did not help, the last: {what}"
        return replace(self.open(why) if many else self, failures_s=failures)

    def open(self, why: str) -> Circuit:
        """The first reason stays."""
        return replace(self, opened=self.opened or why[:500])

    def closed(self) -> Circuit:
        return Circuit(begun_s=self.begun_s)


class Store(Protocol):
    """Where a Circuit is kept. Both raise ClusterError or Unavailable."""

    def load(self) -> Circuit: ...

    def update(self, change: Callable[[Circuit], Circuit]) -> Circuit:
        """Load, change, write; nobody else's change in between is lost."""


class ConfigMapStore:
    """A Circuit in the annotations of a ConfigMap. Any thread may use it."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._ref = Ref("v1", "ConfigMap", namespace, name, "")

    def load(self) -> Circuit:
        return Circuit.read(self._cluster.get_owner(self._ref).annotations)

    def update(self, change: Callable[[Circuit], Circuit]) -> Circuit:
        for _ in range(_TRIES):
            found = self._cluster.get_owner(self._ref)
            changed = change(Circuit.read(found.annotations))
            body = {"metadata": {"annotations": changed.annotations()}}
            try:
                self._cluster.patch(found.ref, body, found.resource_version)
                return changed
            except Conflict:
                continue
        raise Unavailable(f"ConfigMap {self._ref.namespace}/{self._ref.name} keeps changing; see who writes to it")


STORE_ERRORS = (ClusterError, Unavailable)
