"""A JobBackend and a CircuitStore in memory: one kind of job that can be suspended, and faults at any call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpufrag.restarter import reasons
from gpufrag.restarter.alerts import Alert
from gpufrag.restarter.backend import BackendError, Changes, Conflict, Job, NotFound, Search, Stage, State
from gpufrag.restarter.decisions import Decision
from gpufrag.restarter.reasons import Refused
from gpufrag.restarter.record import PHASE, SUSPENDED, WAITING, RestartRecord

NAME = "train"


class Killed(BaseException):
    """The restarter's process ends during a call."""


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
    def uid(self) -> str:
        return f"uid-{self.name}"

    @property
    def pod_name(self) -> str:
        return f"{self.name}-{self.generation}"


@dataclass
class MemoryBackend:
    """Every call is numbered; `fault(number, name, done)` may raise before and after it is carried out."""

    jobs: dict[str, FakeJob] = field(default_factory=lambda: {NAME: FakeJob()})
    circuit: dict[str, str] | None = field(default_factory=dict)
    circuit_version: int = 1
    events: list[Decision] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    fault: Callable[[int, str, bool], None] = lambda number, name, done: None
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

    def find(self, alert: Alert, earlier: Job | None = None) -> Job:
        def find() -> Job:
            for job in self.jobs.values():
                if job.pod_name == alert.pod and job.pod_lives:
                    return _seen(job)
            raise Refused(reasons.POD_GONE)

        found: Job = self._call("find", find)
        return found

    def series_labels(self, alert: Alert) -> Mapping[str, str]:
        return {"pod": alert.pod or ""}

    def read(self, job: Job) -> Job:
        found: Job = self._call("read", lambda: _seen(self._get(job)))
        return found

    def remember(self, job: Job, changes: Changes) -> Job:
        changed: Job = self._call("remember", lambda: _seen(self._store(job, changes)))
        return changed

    def check(self, job: Job) -> None:
        if job.handle.suspended:
            raise Refused(reasons.SUSPENDED)

    def stop(self, job: Job, record: RestartRecord, dry_run: bool = False) -> None:
        def stop() -> None:
            if not dry_run:
                order = str(job.handle.generation)
                stopped = self._store(job, replace(record, phase=SUSPENDED, order=order).annotations())
                self.suspensions += not stopped.suspended
                stopped.suspended = True

        self._call("stop", stop)

    def start(self, job: Job, record: RestartRecord) -> None:
        def start() -> None:
            self._store(job, replace(record, phase=WAITING).annotations()).suspended = False

        self._call("start", start)

    def state(self, job: Job) -> State:
        def state() -> State:
            found = self._get(job)
            if found.suspended:
                return State(Stage.STOPPING) if found.pod_lives else State(Stage.STOPPED, confirmed=self.confirms)
            if found.waits_for:
                return State(Stage.STARTING, found.waits_for, needs_resources=True)
            new = str(found.generation) != job.record.order
            return State(Stage.RUNNING) if new and found.pod_lives and found.ready else State(Stage.STARTING, "pods")

        found: State = self._call("state", state)
        return found

    def unfinished(self, also_in: Collection[str] = ()) -> Search:
        def search() -> list[Job]:
            return [_seen(job) for job in self.jobs.values() if PHASE in job.annotations]

        try:
            return Search(self._call("unfinished", search))
        except BackendError as error:
            return Search(error=error)

    def notify(self, job: Job, decision: Decision) -> None:
        self._call("notify", lambda: self.events.append(decision))

    def load(self) -> tuple[Mapping[str, str], Any]:
        def load() -> tuple[Mapping[str, str], Any]:
            if self.circuit is None:
                raise NotFound("no ConfigMap gpufrag-restarter")
            return dict(self.circuit), self.circuit_version

        loaded: tuple[Mapping[str, str], Any] = self._call("load", load)
        return loaded

    def save(self, changes: Changes, version: Any) -> None:
        def save() -> None:
            if version != self.circuit_version:
                raise Conflict("the circuit has changed")
            self.circuit = _merged(self.circuit or {}, changes)
            self.circuit_version += 1

        self._call("save", save)

    def _call(self, name: str, answer: Callable[[], Any]) -> Any:
        number = len(self.calls)
        self.calls.append(name)
        self.fault(number, name, False)
        result = answer()
        self.fault(number, name, True)
        return result

    def _get(self, job: Job) -> FakeJob:
        found = next((one for one in self.jobs.values() if one.uid == job.uid), None)
        if found is None:
            raise NotFound(f"no {job.name}")
        return found

    def _store(self, job: Job, changes: Changes) -> FakeJob:
        found = self._get(job)
        if found.version != job.handle.version:
            raise Conflict("the job has changed")
        found.annotations = _merged(found.annotations, changes)
        found.version += 1
        return found


def _merged(old: Mapping[str, str], changes: Changes) -> dict[str, str]:
    return {key: value for key, value in {**old, **changes}.items() if value is not None}


def _seen(job: FakeJob) -> Job:
    return Job(
        kind="fake",
        name=f"job {job.name}",
        uid=job.uid,
        annotations=dict(job.annotations),
        cost="nothing else",
        finished=job.finished,
        deleting=job.deleting,
        handle=replace(job),
    )


def fail_at(number: int, done: bool, error: BaseException, times: int = 1) -> Callable[[int, str, bool], None]:
    """Return a fault at `times` calls from `number` on, before or after they are carried out."""
    used = itertools.count()

    def fault(at: int, name: str, after: bool) -> None:
        if at >= number and after == done and next(used) < times:
            raise error

    return fault
