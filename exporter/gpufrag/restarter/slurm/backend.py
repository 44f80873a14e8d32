"""Slurm jobs as a JobBackend: `scontrol requeue` restarts them, and the state file holds their annotations.

A job opts in with words in its comment, which the restarter only reads:

    sbatch --requeue --comment "gpufrag.dev/restart=true gpufrag.dev/signal=USR1" train.sbatch
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from ...checkpoint.protocol import CheckpointFailed
from .. import reasons
from ..alerts import Alert
from ..backend import BackendError, Changes, Denied, Invalid, Job, NotFound, Search, Stage, State
from ..checkpoint import Checkpoint
from ..reasons import Refused
from ..record import ANNOTATIONS, CLAIMED, DEFRAGMENT, OPT_IN, ORDER, PAUSE, PHASE, SUSPENDED, WAITING, RestartRecord
from ..state_file import Entry, StateFile
from .commands import Runner, SlurmJob, name_of, requeue, show, signal, standing_for, start_in

KIND = "slurm"
COST = "it goes back to the queue and may wait there for its nodes; Slurm counts a restart"
SIGNAL = f"{ANNOTATIONS}/signal"
SAVED = f"{ANNOTATIONS}/saved"
"""A job may write the step into its comment after it has saved."""
COMMENT_WORDS = frozenset({OPT_IN, PAUSE, DEFRAGMENT, SIGNAL, SAVED})
SIGNALS = frozenset({"HUP", "INT", "TERM", "USR1", "USR2"})
UNFINISHED = frozenset({"COMPLETING", "CONFIGURING", "PENDING", "REQUEUED", "RUNNING", "SIGNALING", "SUSPENDED"})
"""States of jobs that have not ended, or will be requeued."""
ACTIVE = frozenset({"COMPLETING", "RUNNING", "SIGNALING"})
"""States of a run whose end is not known yet."""
HELD = ("held", "hold", "never", "invalid", "bad")
"""Parts of the reasons of a job that does not start until a person acts; any other pending job waits for resources."""
POLL_S = 2.0
_NAME = re.compile(r"(?:(?P<name>.*)-)?(?P<id>[1-9][0-9]{0,9})(?:_(?P<task>[0-9]{1,9}))?", re.DOTALL)


@dataclass(frozen=True)
class SlurmBackend:
    """All jobs that Slurm's commands show; those of `users` may be restarted.

    `start_after_s`: when a requeued job may start; None: after Slurm's own two minutes.
    """

    run: Runner
    state_file: StateFile
    users: Collection[str]
    start_after_s: float | None = None

    def find(self, alert: Alert, earlier: Job | None = None) -> Job:
        """By the label job_name: the job's name, a hyphen, and its number (a task's may be 4_1); or only the number."""
        label = alert.labels.get("job_name", "")
        match = _NAME.fullmatch(label)
        if match is None:
            raise Refused(reasons.NO_JOB_ID, repr(label[:80]))
        job = show(self.run, self._number(match))
        name = name_of(self.run, job.address)
        if match["name"] not in (None, name) or (earlier is not None and str(job.id) != earlier.uid):
            raise Refused(reasons.POD_REPLACED, f"Slurm job {job.address} is named {name[:80]!r}")
        return self._job(job)

    def series_labels(self, alert: Alert) -> Mapping[str, str]:
        return {"job_name": alert.labels.get("job_name", "")}

    def read(self, job: Job) -> Job:
        return self._job(show(self.run, job.handle.job.id))

    def remember(self, job: Job, changes: Changes) -> Job:
        found: SlurmJob = job.handle.job
        entry = self.state_file.patch(_key(found.id), changes, job.handle.version)
        return _job(found, entry)

    def check(self, job: Job) -> None:
        found: SlurmJob = job.handle.job
        if found.user not in self.users:
            raise Refused(reasons.OTHER_USER, found.user)
        if not found.requeue:
            raise Refused(reasons.NO_REQUEUE)
        if found.state != "RUNNING":
            raise Refused(reasons.NOT_RUNNING, found.state)

    def stop(self, job: Job, record: RestartRecord, dry_run: bool = False) -> None:
        """Requeue it; Slurm starts it again. The order is the number of restarts before it."""
        found: SlurmJob = job.handle.job
        phase = WAITING if self.start_after_s is None else SUSPENDED
        if dry_run:
            return
        self.remember(job, replace(record, phase=phase, order=str(found.restarts)).annotations())
        if show(self.run, found.id).restarts == found.restarts:  # a job may requeue itself on the signal
            requeue(self.run, found.address)

    def start(self, job: Job, record: RestartRecord) -> None:
        """Shorten the wait of a requeued job. It starts later anyway, so a refusal is no error."""
        with suppress(Denied, Invalid):
            start_in(self.run, job.handle.job.address, math.ceil(self.start_after_s or 0.0))
        self.remember(job, replace(record, phase=WAITING).annotations())

    def state(self, job: Job) -> State:
        found: SlurmJob = job.handle.job
        if job.record.order == str(found.restarts):
            return State(Stage.ORDERED, runs=found.state == "RUNNING", confirmed=found.state == "FAILED")
        if found.state == "RUNNING":
            return State(Stage.RUNNING)
        waits = f"Slurm: {found.state}, reason {found.reason}"
        if found.state == "PENDING" and found.reason == "BeginTime" and job.record.phase == SUSPENDED:
            return State(Stage.STOPPED, waits, confirmed=True)
        queued = found.state == "PENDING" and found.reason != "BeginTime"
        held = any(part in found.reason.lower() for part in HELD)
        return State(Stage.STARTING, waits, needs_resources=queued and not held)

    def unfinished(self, also_in: Collection[str] = ()) -> Search:
        found = []
        error: BackendError | None = None
        for key in self.state_file.marked():
            if match := re.fullmatch(rf"{KIND}/([1-9][0-9]*)", key):
                try:
                    found.append(self._job(show(self.run, int(match[1]))))
                except NotFound:
                    continue
                except BackendError as failure:
                    error = failure
        return Search(found, error)

    def _number(self, match: re.Match[str]) -> int:
        """Return the number of one job. A name comes with SLURM_JOB_ID, which belongs to one task of an array."""
        number, task = int(match["id"]), match["task"]
        address = str(number) if task is None else f"{number}_{int(task)}"
        found = standing_for(self.run, address)
        if task is None and match["name"] is not None and number in found:
            return number
        if len(found) > 1 or (found and task is None and found != (number,)):
            raise Refused(reasons.AMBIGUOUS_NAME, f"{address} is a job array; name one task, for example {address}_1")
        return found[0] if found else number

    def _job(self, job: SlurmJob) -> Job:
        return _job(job, self.state_file.get(_key(job.id)))


@dataclass(frozen=True)
class _Handle:
    job: SlurmJob
    version: int


@dataclass(frozen=True)
class SignalCheckpointer:
    """Sends the signal that the job's comment names, and waits until the job reports that it saved, or `grace_s`."""

    run: Runner
    steady: Callable[[], float]
    grace_s: float

    def save(self, job: Job, timeout_s: float) -> Generator[float, None, Checkpoint]:
        wanted = job.annotations.get(SIGNAL)
        if wanted is None:
            return Checkpoint(
                f"The Slurm job's comment has no {SIGNAL}: work that it does not save on SIGTERM is lost."
            )
        batch, name = wanted.startswith("B:"), wanted.removeprefix("B:").removeprefix("SIG")
        if name not in SIGNALS:
            raise CheckpointFailed(f"{SIGNAL}={wanted:.20} is not one of {', '.join(sorted(SIGNALS))}")
        number = job.handle.job.id
        try:
            found = show(self.run, number)
            before = _words(found.comment).get(SAVED)
            signal(self.run, found.address, name, batch)
            return (yield from self._wait(number, name, before, timeout_s))
        except BackendError as error:
            raise CheckpointFailed(f"cannot send SIG{name} or read the job: {error}") from None

    def _wait(self, number: int, name: str, before: str | None, timeout_s: float) -> Generator[float, None, Checkpoint]:
        """Wait `grace_s` for a job that runs, and until the timeout for one that is ending."""
        begun_s, waited_s, ending = self.steady(), 0.0, False
        while waited_s < (timeout_s if ending else min(self.grace_s, timeout_s)):
            job = show(self.run, number)
            saved = _words(job.comment).get(SAVED)
            if saved is not None and saved != before:
                step = int(saved) if saved.isdecimal() and len(saved) < 16 else None
                return Checkpoint(f"The job reports that it saved ({saved:.40}).", saved=True, step=step)
            if job.state not in ACTIVE:
                return Checkpoint(f"After SIG{name} the job is {job.state}.")
            ending = job.state == "COMPLETING"
            yield min(POLL_S, self.grace_s)
            waited_s = self.steady() - begun_s
        return Checkpoint(f"SIG{name} was sent {waited_s:.0f} s ago; the job has not reported that it saved.")


def _key(number: int) -> str:
    return f"{KIND}/{number}"


def _job(job: SlurmJob, entry: Entry) -> Job:
    """The state file overrides the comment, where users set options."""
    annotations = {**_words(job.comment), **entry.annotations}
    owed = job.state == "FAILED" and SIGNAL in annotations and _failed_by_us(job, annotations)
    if owed:
        annotations |= {PHASE: WAITING, ORDER: str(job.restarts)}
    return Job(
        kind=KIND,
        name=f"Slurm job {job.address}",
        uid=str(job.id),
        annotations=annotations,
        cost=COST,
        finished=job.state not in UNFINISHED and not owed,
        handle=_Handle(job, entry.version),
    )


def _failed_by_us(job: SlurmJob, annotations: Mapping[str, str]) -> bool:
    """A job that fails during its restart failed because of the signal, so it must still be requeued.

    Ranks that saved exit with 42, and a job without a handler is killed. A job that completes is done.
    """
    phase = annotations.get(PHASE)
    return phase == CLAIMED or (phase in (WAITING, SUSPENDED) and annotations.get(ORDER) == str(job.restarts))


def _words(comment: str) -> dict[str, str]:
    """Parse words such as gpufrag.dev/restart=true."""
    pairs = [word.partition("=")[::2] for word in comment.split()]
    return {key: value for key, value in pairs if key in COMMENT_WORDS}
