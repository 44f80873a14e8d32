"""What the restarter needs from the system that runs the jobs: `JobBackend`, its records and its errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from ..errors import GpufragError
from . import reasons
from .alerts import Alert
from .reasons import Reason, Refused
from .record import RestartRecord

Changes = Mapping[str, "str | None"]
"""Annotations to set; None removes one."""


class BackendError(GpufragError):
    """Base of what a call to a backend raises."""

    reason: Reason = reasons.BACKEND_UNAVAILABLE

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s

    def refusal(self) -> Refused:
        """Return this error as the reason why a restart does not begin."""
        return Refused(self.reason, str(self))


class Conflict(BackendError):
    """Another client changed or created the object first. Nothing was done: read it again."""

    reason = reasons.CONFLICT


class NotFound(BackendError):
    """There is no such object, or no such kind of object. Nothing was done."""

    reason = reasons.JOB_GONE


class Denied(BackendError):
    """The credentials are invalid or lack a permission. Nothing was done."""

    reason = reasons.FORBIDDEN


class Invalid(BackendError):
    """The request will never be accepted. Nothing was done."""

    reason = reasons.INVALID_REQUEST


class TooMany(BackendError):
    """The server asks to try again later. Nothing was done."""


class Away(BackendError):
    """No usable answer, so the request may have been carried out or not. Try again."""


@dataclass(frozen=True)
class Job:
    """One job at one moment."""

    kind: str
    """Label value of metrics: Job.batch, process, slurm."""
    name: str
    """As messages name it: Job.batch ml/train."""
    uid: str
    """Distinguishes it from a later job of the same name."""
    annotations: Mapping[str, str]
    cost: str
    """What a restart costs in addition to the work since the last checkpoint."""
    finished: bool = False
    deleting: bool = False
    namespace: str = ""
    handle: Any = field(default=None, compare=False, repr=False)
    """For the backend that made it."""

    @property
    def record(self) -> RestartRecord:
        return RestartRecord.read(self.annotations)


class Stage(Enum):
    """How far a restart that was ordered has come."""

    ORDERED = "ordered"
    """The order has no visible effect yet."""
    STOPPING = "stopping"
    """Part of the job still runs. It will wait for `start`."""
    STOPPED = "stopped"
    """Nothing of the job runs. It waits for `start`."""
    STARTING = "starting"
    RUNNING = "running"
    """All of the job runs, and none of it is from before the restart."""


@dataclass(frozen=True)
class State:
    """A stage, and what the job waits for."""

    stage: Stage
    waits_for: str = ""
    needs_resources: bool = False
    """The job waits for a scheduler, which is no failure."""
    runs: bool = False
    """ORDERED: whether the job still runs."""
    confirmed: bool = False
    """STOPPED: the job's controller reports it too. ORDERED: the order surely had no effect."""


@dataclass(frozen=True)
class Search:
    """Jobs whose restart is not complete, and why some may be missing."""

    jobs: Sequence[Job] = ()
    error: BackendError | None = None
    unsearched: frozenset[str] = frozenset()
    """Namespaces of earlier restarts that are neither configured nor accessible."""


class JobBackend(Protocol):
    """A system that runs jobs. Each call is bounded in time and raises BackendError; none retries."""

    def find(self, alert: Alert, earlier: Job | None = None) -> Job:
        """Return the job that an alert is about. Raises Refused, also if it is not the same job as `earlier`."""

    def series_labels(self, alert: Alert) -> Mapping[str, str]:
        """Return the labels by which the job's own metrics are found."""

    def read(self, job: Job) -> Job:
        """Return the job as it is now. Raises NotFound."""

    def remember(self, job: Job, changes: Changes) -> Job:
        """Change annotations. Raises Conflict if the job changed after `job` was read."""

    def check(self, job: Job) -> None:
        """Raise Refused if this job cannot be restarted now."""

    def stop(self, job: Job, record: RestartRecord, dry_run: bool = False) -> None:
        """Order the restart, or the first half of it, and store `record` with its new phase and order.

        The record is stored first, in one compare-and-swap, so a crash leaves a trace. May be called again.
        """

    def start(self, job: Job, record: RestartRecord) -> None:
        """Start a job that is STOPPED, and store `record` with its new phase. May be called again."""

    def state(self, job: Job) -> State: ...

    def unfinished(self, also_in: Collection[str] = ()) -> Search:
        """Return the jobs whose restart is not complete. `also_in`: namespaces of earlier restarts."""
