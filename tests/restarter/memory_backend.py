"""A JobBackend and a CircuitStore in memory: one kind of job that can be suspended, and faults at any call."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpufrag.restarter import reasons
from gpufrag.restarter.backend import BackendError, Changes, Conflict, Job, NotFound, Search, Stage, State
from gpufrag.restarter.decisions import Decision
from gpufrag.restarter.reasons import Refused
from gpufrag.restarter.record import PHASE, SUSPENDED, WAITING, RestartRecord

NAME = "train"
Fault = Callable[[int, str, bool], None]


class Killed(BaseException):
    """The restarter's process ends during a call."""


def no_fault(number: int, name: str, done: bool) -> None:
    pass


def fail_at(number: int, done: bool, error: BaseException, times: int = 1) -> Fault:
    """Return a fault at `times` calls from `number` on, before or after they are carried out."""
    used = itertools.count()

    def fault(at: int, name: str, after: bool) -> None:
        if at >= number and after == done and next(used) < times:
            raise error

    return fault


@dataclass
class FakeJob:
    """A job with one pod, `<name>-<generation>`."""

    name: str = NAME
    annotations: dict[str, str] = field(default_factory=lambda: {"gpufrag.dev/restart": "true"})
    suspended: bool = False
    version: int = 1
    generation: int = 1
    pod_lives: bool = True
    ready: bool = True
    waits_for: str = ""
    finished: bool = False
    deleting: bool = False

    @property
    def pod_name(self) -> str:
        return f"{self.name}-{self.generation}"

    def seen(self) -> Job:
        name, uid, annotations = f"job {self.name}", f"uid-{self.name}", dict(self.annotations)
        state = {"finished": self.finished, "deleting": self.deleting, "handle": replace(self)}
        return Job("fake", name, uid, annotations, "nothing else", **state)


def call(method: Callable[..., Any]) -> Callable[..., Any]:
    """Number the call. `fault(number, name, done)` may raise before and after it is carried out."""

    @functools.wraps(method)
    def run(backend: MemoryBackend, *arguments: Any, **named: Any) -> Any:
        number = len(backend.calls)
        backend.calls.append(method.__name__)
        backend.fault(number, method.__name__, False)
        result = method(backend, *arguments, **named)
        backend.fault(number, method.__name__, True)
        return result

    return run


@dataclass
class MemoryBackend:
    jobs: dict[str, FakeJob] = field(default_factory=lambda: {NAME: FakeJob()})
    circuit: dict[str, str] | None = field(default_factory=dict)
    circuit_version: int = 1
    events: list[Decision] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    fault: Fault = no_fault
    suspensions: int = 0
    stuck: bool = False
    """Whether pods never end."""
    confirms: bool = True
    """Whether its controller reports that a job is suspended."""

    @property
    def job(self) -> FakeJob:
        return self.jobs[NAME]

    @property
    def record(self) -> RestartRecord:
        return RestartRecord.read(self.job.annotations)

    @property
    def suspended(self) -> bool:
        return any(job.suspended for job in self.jobs.values())

    def settle(self) -> None:
        """Do what the controllers do."""
        for job in self.jobs.values():
            if job.suspended and not self.stuck:
                job.pod_lives = False
            elif not job.suspended and not job.pod_lives:
                job.pod_lives, job.generation = True, job.generation + 1

    @call
    def find(self, alert, earlier=None):
        for job in self.jobs.values():
            if job.pod_name == alert.pod and job.pod_lives:
                return job.seen()
        raise Refused(reasons.POD_GONE)

    def series_labels(self, alert):
        return {"pod": alert.pod or ""}

    @call
    def read(self, job):
        return self._get(job).seen()

    @call
    def remember(self, job, changes):
        return self._store(job, changes).seen()

    def check(self, job):
        if job.handle.suspended:
            raise Refused(reasons.SUSPENDED)

    @call
    def stop(self, job, record, dry_run=False):
        if not dry_run:
            stopping = replace(record, phase=SUSPENDED, order=str(job.handle.generation))
            stopped = self._store(job, stopping.annotations())
            self.suspensions += not stopped.suspended
            stopped.suspended = True

    @call
    def start(self, job, record):
        self._store(job, replace(record, phase=WAITING).annotations()).suspended = False

    @call
    def state(self, job):
        found = self._get(job)
        if found.suspended:
            return State(Stage.STOPPING) if found.pod_lives else State(Stage.STOPPED, confirmed=self.confirms)
        if found.waits_for:
            return State(Stage.STARTING, found.waits_for, needs_resources=True)
        new = str(found.generation) != job.record.order
        return State(Stage.RUNNING) if new and found.pod_lives and found.ready else State(Stage.STARTING, "pods")

    def unfinished(self, also_in=()):
        try:
            return Search(self._unfinished())
        except BackendError as error:
            return Search(error=error)

    @call
    def notify(self, job, decision):
        self.events.append(decision)

    @call
    def load(self):
        if self.circuit is None:
            raise NotFound("no ConfigMap gpufrag-restarter")
        return dict(self.circuit), self.circuit_version

    @call
    def save(self, changes, version):
        if version != self.circuit_version:
            raise Conflict("the circuit has changed")
        self.circuit = _merged(self.circuit or {}, changes)
        self.circuit_version += 1

    @call
    def _unfinished(self):
        return [job.seen() for job in self.jobs.values() if PHASE in job.annotations]

    def _get(self, job: Job) -> FakeJob:
        for one in self.jobs.values():
            if one.name == job.handle.name:
                return one
        raise NotFound(f"no {job.name}")

    def _store(self, job: Job, changes: Changes) -> FakeJob:
        found = self._get(job)
        if found.version != job.handle.version:
            raise Conflict("the job has changed")
        found.annotations = _merged(found.annotations, changes)
        found.version += 1
        return found


def _merged(old: Mapping[str, str], changes: Changes) -> dict[str, str]:
    return {key: value for key, value in {**old, **changes}.items() if value is not None}
