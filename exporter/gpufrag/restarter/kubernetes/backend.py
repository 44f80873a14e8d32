"""Jobs in Kubernetes as a JobBackend, the circuit breaker's ConfigMap, and Events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

from .. import decisions, reasons
from ..alerts import Alert
from ..backend import Away, BackendError, Changes, Denied, Job, Search, State
from ..decisions import Decision
from ..reasons import Refused
from ..record import RestartRecord
from .client import Event, KubernetesClient
from .objects import GroupKind, Owner, Pod, Ref
from .owners import resolve
from .targets import TARGETS, Target

ASK_AGAIN_S = 3600.0
"""A list that was forbidden is requested again after this time."""
EVENT_REASONS: Mapping[str, str] = {
    decisions.REFUSED: "RestartRefused",
    decisions.STARTED: "RestartStarted",
    decisions.WAITING: "RestartWaiting",
    decisions.WOULD_RESTART: "WouldRestart",
    decisions.RESTARTED: "Restarted",
    decisions.DEFRAGMENTED: "Defragmented",
    decisions.NOT_DEFRAGMENTED: "NotDefragmented",
    decisions.FAILED: "RestartFailed",
    decisions.ENDED: "RestartEnded",
    decisions.TAKEN_OVER: "RestartTakenOver",
}


class Handle(NamedTuple):
    """What a Job of this backend stands for. `pod` is the one that the alert names."""

    owner: Owner
    pod: Pod | None

    @property
    def target(self) -> Target:
        return TARGETS[self.owner.group_kind]


@dataclass
class KubernetesBackend:
    """A JobBackend. Only jobs in `namespaces` are found."""

    client: KubernetesClient
    namespaces: tuple[str, ...]
    steady: Callable[[], float]
    _denied_s: dict[tuple[str, GroupKind], float] = field(default_factory=dict)
    """When a list was forbidden, by the steady clock."""

    def find(self, alert: Alert, earlier: Job | None = None) -> Job:
        namespace, pod = alert.namespace, alert.pod
        if not namespace or not pod:
            raise Refused(reasons.NO_POD)
        if namespace not in self.namespaces:
            raise Refused(reasons.NAMESPACE_NOT_ALLOWED, namespace)
        same_pod = earlier.handle.pod.uid if earlier else None
        found = resolve(self.client, namespace, pod, same_pod)
        if earlier is not None and found.owner.uid != earlier.uid:
            raise Refused(reasons.POD_REPLACED, earlier.name)
        return _job(found.owner, found.pod)

    def series_labels(self, alert: Alert) -> Mapping[str, str]:
        return {"namespace": alert.namespace or "", "pod": alert.pod or ""}

    def read(self, job: Job) -> Job:
        handle: Handle = job.handle
        return _job(self.client.get_owner(handle.owner.ref), handle.pod)

    def remember(self, job: Job, changes: Changes) -> Job:
        handle: Handle = job.handle
        body = {"metadata": {"annotations": dict(changes)}}
        return _job(self.client.patch(handle.owner.ref, body, handle.owner.resource_version), handle.pod)

    def check(self, job: Job) -> None:
        handle: Handle = job.handle
        handle.target.check(handle.owner, handle.pod)

    def stop(self, job: Job, record: RestartRecord, dry_run: bool = False) -> None:
        handle: Handle = job.handle
        handle.target.stop(self.client, handle.owner, handle.pod, record, dry_run)

    def start(self, job: Job, record: RestartRecord) -> None:
        handle: Handle = job.handle
        handle.target.start(self.client, handle.owner, record)

    def state(self, job: Job) -> State:
        handle: Handle = job.handle
        return handle.target.state(self.client, handle.owner, job.record)

    def unfinished(self, also_in: Collection[str] = ()) -> Search:
        """A Role usually permits some kinds only; it is an error if it permits none."""
        found: list[Job] = []
        error: BackendError | None = None
        now_s, places = self.steady(), list(product(self.namespaces, TARGETS))
        for namespace, kind in places:
            if now_s - self._denied_s.get((namespace, kind), -ASK_AGAIN_S) < ASK_AGAIN_S:
                continue
            try:
                found += [_job(owner, None) for owner in self.client.list_marked(kind, namespace)]
                self._denied_s.pop((namespace, kind), None)
            except Denied as failure:
                self._denied_s[namespace, kind] = now_s
                denied = failure
            except BackendError as failure:
                error = failure
                if isinstance(failure, Away):  # the next request would wait just as long
                    break
        if places and len(self._denied_s) == len(places):
            error = denied
            for namespace in self.namespaces:  # asked again by the next search
                del self._denied_s[namespace, places[0][1]]
        unsearched = set()
        for namespace in set(also_in) - set(self.namespaces):
            try:
                found += [_job(one, None) for kind in TARGETS for one in self.client.list_marked(kind, namespace)]
            except BackendError:
                unsearched.add(namespace)
        return Search(found, error, frozenset(unsearched))

    def pods(self, job: Job) -> tuple[Pod, ...]:
        handle: Handle = job.handle
        return handle.target.pods(self.client, handle.owner)

    def notify(self, job: Job, decision: Decision) -> None:
        """Create an Event on the job."""
        handle: Handle = job.handle
        note = f"{decision.text} [{decision.reason}; alert {decision.alert or 'none'} {decision.fingerprint}]"
        related = handle.pod.ref if handle.pod else None
        reason = EVENT_REASONS[decision.outcome]
        self.client.create_event(Event(handle.owner.ref, reason, note, decision.at_s, decision.warning, related))


def _job(owner: Owner, pod: Pod | None) -> Job:
    return Job(
        kind=str(owner.group_kind),
        name=str(owner.ref),
        uid=owner.uid,
        annotations=owner.annotations,
        cost=TARGETS[owner.group_kind].cost,
        finished=owner.finished,
        deleting=owner.deleting,
        namespace=owner.namespace,
        handle=Handle(owner, pod),
    )


class ConfigMapStore:
    """A CircuitStore in the annotations of a ConfigMap."""

    def __init__(self, client: KubernetesClient, namespace: str, name: str) -> None:
        self._client = client
        self._ref = Ref("v1", "ConfigMap", namespace, name, "")

    def load(self) -> tuple[Mapping[str, str], Any]:
        found = self._client.get_owner(self._ref)
        return found.annotations, (found.uid, found.resource_version)

    def save(self, changes: Changes, version: Any) -> None:
        uid, resource_version = version
        body = {"metadata": {"annotations": dict(changes)}}
        self._client.patch(replace(self._ref, uid=uid), body, resource_version)
