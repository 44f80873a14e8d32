"""Jobs of Slurm: put back into the queue by `scontrol requeue`, and remembered in the receiver's file.

A job opts in by its comment, in words that are separated by spaces; the restarter writes nothing there:

    sbatch --requeue --comment "gpufrag.dev/restart=true gpufrag.dev/signal=USR1" train.sbatch
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, replace

from ...checkpoint.protocol import CheckpointFailed
from ..alerts import Alert, Place
from ..checkpoint import Checkpoint
from ..clock import Clock
from ..commanded import RESTART, SLURM_JOB, Commanded, expected_restarts, owner, pod, reference
from ..errors import ClusterError, Conflict, Denied, Invalid, NotFound, Refused
from ..kubernetes.cluster import ANNOTATIONS, PHASE, Body, GroupKind, Owner, Pod, Ref
from ..kubernetes.owners import Resolved
from ..kubernetes.steps import COMMANDED
from ..off_cluster import OffCluster, annotations_in, key_of
from ..policy import OPT_IN, PAUSE
from ..record import CLAIMED, WAITING
from ..state_file import StateFile
from .commands import Runner, SlurmJob, name_of, nodes_of, requeue, show, signal, standing_for, start_in

NAMESPACE = "slurm"
SIGNAL = f"{ANNOTATIONS}/signal"
SAVED = f"{ANNOTATIONS}/saved"
"""What a job may write into its comment once it has saved: the step."""
WISHES = frozenset({OPT_IN, PAUSE, SIGNAL, SAVED})
"""All that a comment may say; what a restarter remembers is not in it."""
SIGNALS = frozenset({"HUP", "INT", "TERM", "USR1", "USR2"})
GOES_ON = frozenset({"COMPLETING", "CONFIGURING", "PENDING", "REQUEUED", "RUNNING", "SIGNALING", "SUSPENDED"})
"""States of jobs that have not come to their end."""
AT_WORK = frozenset({"COMPLETING", "RUNNING", "SIGNALING"})
"""Of these, those of a run whose end is not known yet."""
POLL_S = 2.0
_NAME = re.compile(r"(?:(?P<name>.*)-)?(?P<id>[1-9][0-9]{0,9})(?:_(?P<task>[0-9]{1,9}))?", re.DOTALL)


def locate(alert: Alert) -> Alert:
    """By its label job_name, to which `gpufrag serve --write-target` gives the job's name and number."""
    return replace(alert, place=Place(NAMESPACE, alert.labels.get("job_name") or None))


def targets(users: Collection[str], hurry: bool = False) -> Mapping[GroupKind, Commanded]:
    """`users`: whose jobs may be touched. `hurry`: a job that was put back does not wait for two minutes."""

    def refusal(job: Owner) -> Refused | None:
        if job.status["user"] not in users:
            return Refused("other-user", f"{job.ref} is {job.status['user']}'s; add the user to slurm.users")
        if not job.status["requeue"]:
            return Refused("no-requeue", f"{job.ref} must not be put back into the queue; submit it with --requeue")
        if not job.status["running"]:
            return Refused("not-running", f"{job.ref} is {job.status['state']}: what an alert is about has ended")
        return None

    def waits(job: Owner) -> bool:
        return hurry and job.status["state"] == "PENDING" and job.status["reason"] == "BeginTime"

    lost = "it goes back into the queue, and may wait there for its nodes; Slurm counts a restart"
    return {SLURM_JOB: Commanded(SLURM_JOB, lost, refusal, waits)}


class SlurmCluster(OffCluster):
    """A Cluster of all jobs that Slurm's commands show. `start_after_s`: of jobs that wait for nothing."""

    def __init__(self, run: Runner, state: StateFile, start_after_s: float = 0.0) -> None:
        super().__init__(state)
        self._command, self._start_after_s = run, start_after_s

    def get_pod(self, namespace: str, name: str) -> Pod:
        """`name`: the job's name, a hyphen, and its number (a task's may be 4_1); or that alone. Raises Refused."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise Refused(
                "no-job-number", f"job_name {name!r:.80} does not end with a job's number; see --write-target"
            )
        job = show(self._command, self._number(match))
        called = name_of(self._command, job.address)
        if match["name"] is not None and match["name"] != called:
            raise Refused("pod-replaced", f"job {job.address} is called {called!r:.80}, and not as the alert says")
        return pod(_ref(job.id), name, None, job.state == "RUNNING")

    def _number(self, match: re.Match[str]) -> int:
        """Of one job. A name comes with SLURM_JOB_ID, which is one task's own, be it that of the array too."""
        number, task = int(match["id"]), match["task"]
        address = str(number) if task is None else f"{number}_{int(task)}"
        found = standing_for(self._command, address)
        if task is None and match["name"] is not None and number in found:
            return number
        if len(found) > 1 or (found and task is None and found != (number,)):
            raise Refused("ambiguous", f"{address} is a whole array of Slurm's; name one task of it, as {address}_1")
        return found[0] if found else number

    def get_owner(self, ref: Ref) -> Owner:
        return self._owner(show(self._command, int(ref.name))) if ref.group_kind == SLURM_JOB else self.stored(ref)

    def patch(self, ref: Ref, body: Body, resource_version: str | None, dry_run: bool = False) -> Owner:
        if ref.group_kind != SLURM_JOB:
            return self.store(ref, body, resource_version, dry_run)
        job = show(self._command, int(ref.name))
        version = None if resource_version is None else int(resource_version)
        entry = self._state.patch(key_of(ref), annotations_in(body), version, dry_run)
        return _owner(job, entry.version, entry.annotations)

    def create_command(self, ref: Ref, action: str, name: str, dry_run: bool = False) -> None:
        job = show(self._command, int(ref.name))
        if action == RESTART and job.restarts != expected_restarts(name):
            raise Conflict(f"{ref} has been put back into the queue already")
        if dry_run:
            return
        if action == RESTART:
            requeue(self._command, job.address)
            return
        try:
            start_in(self._command, job.address, math.ceil(self._start_after_s))
        except (Denied, Invalid) as error:  # it starts all the same, only later
            raise Conflict(str(error)) from None

    def list_pods(self, namespace: str, selector: str) -> tuple[Pod, ...]:
        """One for each node of the job whose number the selector is, so that each can be asked."""
        job = show(self._command, int(selector))
        nodes = nodes_of(self._command, job.address)
        return tuple(pod(_ref(job.id), f"{job.id}-{node}", node, job.state == "RUNNING") for node in nodes)

    def list_marked(self, kind: GroupKind, namespace: str) -> tuple[Owner, ...]:
        """Of those that are gone, nothing needs to be ended."""
        found = []
        for key in self._state.marked():
            if match := re.fullmatch(rf"{re.escape(str(kind))} {NAMESPACE}/([1-9][0-9]*) .*", key):
                try:
                    found.append(self._owner(show(self._command, int(match[1]))))
                except NotFound:
                    continue
        return tuple(found)

    def _owner(self, job: SlurmJob) -> Owner:
        entry = self._state.get(key_of(_ref(job.id)))
        return _owner(job, entry.version, entry.annotations)


@dataclass(frozen=True)
class SignalCheckpointer:
    """Sends a job the signal that its comment names, and waits: for its word that it has saved, or for a while."""

    run: Runner
    clock: Clock
    grace_s: float

    def save(self, job: Resolved, timeout_s: float) -> Generator[float, None, Checkpoint]:
        wanted = job.owner.annotations.get(SIGNAL)
        if wanted is None:
            return Checkpoint(f"Its comment names no {SIGNAL}: what it does not save on SIGTERM is lost.")
        batch, name = wanted.startswith("B:"), wanted.removeprefix("B:").removeprefix("SIG")
        if name not in SIGNALS:
            raise CheckpointFailed(f"{SIGNAL}={wanted:.20}: not one of {', '.join(sorted(SIGNALS))}")
        number = int(job.owner.name)
        try:
            found = show(self.run, number)
            before = _words(found.comment).get(SAVED)
            signal(self.run, found.address, name, batch)
            return (yield from self._wait(number, name, before, timeout_s))
        except ClusterError as error:
            raise CheckpointFailed(f"SIG{name} could not be sent, or the job not be seen: {error}") from None

    def _wait(self, number: int, name: str, before: str | None, timeout_s: float) -> Generator[float, None, Checkpoint]:
        """A job that runs has its grace; how one ends that has begun to end is waited for until the time is up."""
        begun, waited_s, ends = self.clock.steady(), 0.0, False
        while waited_s < (timeout_s if ends else min(self.grace_s, timeout_s)):
            job = show(self.run, number)
            saved = _words(job.comment).get(SAVED)
            if saved is not None and saved != before:
                step = int(saved) if saved.isdecimal() and len(saved) < 16 else None
                return Checkpoint(f"The job says that it has saved ({saved:.40}).", saved=True, step=step)
            if job.state not in AT_WORK:
                return Checkpoint(f"After SIG{name} the job is {job.state}.")
            ends = job.state == "COMPLETING"
            yield min(POLL_S, self.grace_s)
            waited_s = self.clock.steady() - begun
        return Checkpoint(f"SIG{name} was sent {waited_s:.0f} s ago; the job has not said whether it has saved.")


def _ref(job: int) -> Ref:
    return reference(SLURM_JOB, NAMESPACE, str(job), str(job))


def _owner(job: SlurmJob, version: int, remembered: Mapping[str, str]) -> Owner:
    """What is remembered wins over the comment, where only a user's wishes belong."""
    annotations = {**_words(job.comment), **remembered}
    owed = job.state == "FAILED" and SIGNAL in annotations and _is_begun(job, annotations)
    if owed:
        annotations |= {PHASE: WAITING, COMMANDED: str(job.restarts)}
    status = {
        "restarts": job.restarts,
        "running": job.state == "RUNNING",
        "state": job.state,
        "reason": job.reason,
        "user": job.user,
        "requeue": job.requeue,
    }
    finished = job.state not in GOES_ON and not owed
    return owner(_ref(job.id), version, annotations, status, finished=finished)


def _is_begun(job: SlurmJob, annotations: Mapping[str, str]) -> bool:
    """Whether a restart of this run is under way. If it fails then, it fails of the signal: that was the order to stop.

    Ranks that have saved end with 42, and a job without a handler is killed. One that completes needs no more.
    """
    phase = annotations.get(PHASE)
    return phase == CLAIMED or (phase == WAITING and annotations.get(COMMANDED) == str(job.restarts))


def _words(comment: str) -> dict[str, str]:
    """`gpufrag.dev/restart=true` and the like."""
    pairs = [word.partition("=")[::2] for word in comment.split()]
    return {key: value for key, value in pairs if key in WISHES}
