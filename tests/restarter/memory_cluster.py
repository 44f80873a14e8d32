"""A cluster in memory with one kind of job, a controller that suspends and resumes it, and faults at any call.

Small on purpose: what an API server answers is tested with the fake that speaks HTTP; here, what the worker does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpufrag.restarter.errors import Away, ClusterError, Conflict, NotFound
from gpufrag.restarter.kubernetes.cluster import PHASE, Body, Event, GroupKind, Owner, Pod, Ref
from gpufrag.restarter.kubernetes.kinds import JOB, group_version
from gpufrag.restarter.kubernetes.steps import merged
from gpufrag.restarter.record import Memory

NAMESPACE, NAME = "ml", "train"
STORE = Ref("v1", "ConfigMap", "gpufrag", "gpufrag-restarter", "")


class Killed(BaseException):
    """The receiver's process ends in the middle of a call; nothing that catches errors may catch it."""


@dataclass
class Job:
    """A Job with one pod. `generation` counts its pods: how often it was restarted, and one."""

    name: str = NAME
    annotations: dict[str, str] = field(default_factory=lambda: {"gpufrag.dev/restart": "true"})
    spec: dict[str, Any] = field(default_factory=lambda: {"parallelism": 1, "suspend": False})
    version: int = 1
    generation: int = 1
    pod_lives: bool = True
    ready: bool = True
    finished: bool = False

    @property
    def uid(self) -> str:
        return f"uid-{self.name}"

    @property
    def pod_name(self) -> str:
        return f"{self.name}-{self.generation}"


@dataclass
class MemoryCluster:
    """Every call is numbered; `fault(number, name, done)` may raise before it is done and after."""

    jobs: dict[str, Job] = field(default_factory=lambda: {NAME: Job()})
    store: dict[str, str] | None = field(default_factory=dict)
    store_version: int = 1
    events: list[Event] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    fault: Callable[[int, str, bool], None] = lambda number, name, done: None
    suspensions: int = 0
    stuck: bool = False
    """Whether pods never end."""

    @property
    def job(self) -> Job:
        return self.jobs[NAME]

    @property
    def ref(self) -> Ref:
        return _owner_of(self.job).ref

    @property
    def memory(self) -> Memory:
        return Memory.read(self.job.annotations)

    @property
    def suspended(self) -> bool:
        return any(job.spec["suspend"] for job in self.jobs.values())

    def settle(self) -> None:
        """What the controllers do by and by."""
        for job in self.jobs.values():
            if job.spec["suspend"] and not self.stuck:
                job.pod_lives = False
            elif not job.spec["suspend"] and not job.pod_lives:
                job.pod_lives, job.generation = True, job.generation + 1

    def get_pod(self, namespace: str, name: str) -> Pod:
        return self._call("get_pod", lambda: self._pod(namespace, name))

    def get_owner(self, ref: Ref) -> Owner:
        return self._call("get_owner", lambda: self._owner(ref))

    def patch(self, ref: Ref, body: Body, resource_version: str | None, dry_run: bool = False) -> Owner:
        return self._call("patch", lambda: self._patch(ref, body, resource_version, dry_run))

    def create_event(self, event: Event) -> None:
        self._call("create_event", lambda: self.events.append(event))

    def list_pods(self, namespace: str, selector: str) -> tuple[Pod, ...]:
        def listed() -> tuple[Pod, ...]:
            chosen = [job for job in self.jobs.values() if selector.endswith(job.uid) and job.pod_lives]
            return tuple(_pod_of(job) for job in chosen)

        return self._call("list_pods", listed)

    def list_marked(self, kind: GroupKind, namespace: str) -> tuple[Owner, ...]:
        def listed() -> tuple[Owner, ...]:
            jobs = self.jobs.values() if kind == JOB and namespace == NAMESPACE else ()
            return tuple(_owner_of(job) for job in jobs if PHASE in job.annotations)

        return self._call(f"list_marked {kind}", listed)

    def evict(self, pod: Pod, dry_run: bool = False) -> None:
        raise NotImplementedError

    def create_command(self, ref: Ref, action: str, name: str, dry_run: bool = False) -> None:
        raise NotImplementedError

    def can_i(self, verb: str, kind: GroupKind, namespace: str, subresource: str = "", name: str = "") -> bool:
        return True

    def whoami(self) -> str:
        return "test"

    def _call(self, name: str, answer: Callable[[], Any]) -> Any:
        number = len(self.calls)
        self.calls.append(name)
        self.fault(number, name, False)
        result = answer()
        self.fault(number, name, True)
        return result

    def _pod(self, namespace: str, name: str) -> Pod:
        for job in self.jobs.values():
            if namespace == NAMESPACE and job.pod_name == name and job.pod_lives:
                return _pod_of(job)
        raise NotFound(f"no pod {name}")

    def _owner(self, ref: Ref) -> Owner:
        if ref.kind == "ConfigMap":
            if self.store is None or (ref.namespace, ref.name) != (STORE.namespace, STORE.name):
                raise NotFound("no such ConfigMap")
            return Owner("v1", "ConfigMap", ref.namespace, ref.name, "s", str(self.store_version), dict(self.store))
        job = self.jobs.get(ref.name)
        if job is None or job.uid != ref.uid:
            raise NotFound(f"no {ref}")
        return _owner_of(job)

    def _patch(self, ref: Ref, body: Body, version: str | None, dry_run: bool) -> Owner:
        owner = self._owner(ref)
        if version != owner.resource_version:
            raise Conflict("it has changed")
        annotations = _annotated(owner.annotations, body)
        if ref.kind == "ConfigMap":
            self.store, self.store_version = annotations, self.store_version + 1
            return self._owner(ref)
        job = self.jobs[ref.name]
        changed = replace(job, annotations=annotations, spec=merged(job.spec, body.get("spec", {})))
        changed.version += 1
        if dry_run:
            return _owner_of(changed)
        self.suspensions += changed.spec["suspend"] and not job.spec["suspend"]
        self.jobs[ref.name] = changed
        return _owner_of(changed)


def _annotated(old: Mapping[str, str], body: Body) -> dict[str, str]:
    new = {**old, **body.get("metadata", {}).get("annotations", {})}
    return {key: value for key, value in new.items() if value is not None}


def _owner_of(job: Job) -> Owner:
    suspended = job.spec["suspend"] and not job.pod_lives
    conditions = [{"type": "Suspended", "status": "True"}] if suspended else []
    return Owner(
        group_version=group_version(JOB),
        kind="Job",
        namespace=NAMESPACE,
        name=job.name,
        uid=job.uid,
        resource_version=str(job.version),
        annotations=dict(job.annotations),
        finished=job.finished,
        raw={"metadata": {}, "spec": dict(job.spec), "status": {"conditions": conditions}},
    )


def _pod_of(job: Job) -> Pod:
    controller = {"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": job.uid, "controller": True}
    uid = f"{job.uid}-{job.generation}"
    return Pod(NAMESPACE, job.pod_name, uid, (controller,), phase="Running", ready=job.ready)


def fail_at(number: int, done: bool, error: BaseException, times: int = 1) -> Callable[[int, str, bool], None]:
    """A fault at one call, or at `times` of them from there on: before it is done, or when it is and nobody knows."""
    left = itertools.count()

    def fault(at: int, name: str, after: bool) -> None:
        if at >= number and after == done and next(left) < times:
            raise error

    return fault


ERRORS: tuple[ClusterError, ...] = (Away("503"), Conflict("409"))
