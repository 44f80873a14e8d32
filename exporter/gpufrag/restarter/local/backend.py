"""Jobs on this host that were started with `gpufrag run --restartable`, as a JobBackend."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...checkpoint.coordinator import AskRanks, ask_folder
from ...checkpoint.protocol import Answers, RankCommand
from ...errors import BadInput
from ...wire.codec import loads
from ...wire.control_client import (
    MAX_OPEN,
    AccessDenied,
    Answer,
    ControlError,
    Impostor,
    NotListening,
    Rejected,
    ask_all,
)
from ...wire.folder import open_plain
from ...wire.processes import descendants
from ...wire.supervised_job import CONFLICT, RECORD, SOCKET, JobFile, SupervisedJob, decode
from .. import reasons
from ..alerts import Alert
from ..backend import Away, BackendError, Changes, Conflict, Invalid, Job, NotFound, Search, Stage, State
from ..reasons import Refused
from ..record import DEFRAGMENT, OPT_IN, PAUSE, PHASE, WAITING, RestartRecord

KIND = "process"
COST = "its processes stop and start together, on the same GPUs"
MAX_RECORD = 64 << 10
TIMEOUT_S = 5.0
MAX_SUPERVISORS = MAX_OPEN
"""Of one user. More are not asked, so that silent ones delay the jobs of other users only once."""


class LocalBackend:
    """Asks the supervisors whose sockets are in `folder`: those of this user, or of all users for root."""

    def __init__(self, folder: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._folder, self._timeout_s = folder, timeout_s

    def find(self, alert: Alert, earlier: Job | None = None) -> Job:
        """Find the job by the alert's label job_name."""
        name = alert.labels.get("job_name", "")
        jobs, silent = self._jobs(name)
        named = [job for job in jobs if job.name == name]
        if not named and silent:
            raise silent[0]
        if not named:
            raise Refused(reasons.NO_SUPERVISOR, repr(name[:80]))
        if len(named) > 1:
            raise Refused(reasons.AMBIGUOUS_NAME, f"{len(named)} jobs {name[:80]!r}")
        if earlier is not None and named[0].uid != earlier.uid:
            raise Refused(reasons.POD_REPLACED, earlier.name)
        return _job(named[0])

    def series_labels(self, alert: Alert) -> Mapping[str, str]:
        return {"job_name": alert.labels.get("job_name", "")}

    def read(self, job: Job) -> Job:
        return _job(self._ask(job, "job"))

    def remember(self, job: Job, changes: Changes) -> Job:
        return _job(self._remember(job, changes))

    def check(self, job: Job) -> None:
        """In place, torchrun must have restarts left."""
        supervised: SupervisedJob = job.handle
        if not supervised.in_place:
            return
        elastic = supervised.elastic
        if elastic is None:
            raise Refused(reasons.NO_TORCHRUN_WORKERS)
        if elastic.restarts >= elastic.max_restarts:
            used = f"{elastic.restarts} of --max-restarts {elastic.max_restarts} used"
            raise Refused(reasons.NO_ELASTIC_RESTARTS_LEFT, used)

    def stop(self, job: Job, record: RestartRecord, dry_run: bool = False) -> None:
        """The supervisor stops and starts the job. The order is the number of restarts before it."""
        restarts = job.handle.restarts
        self._remember(job, replace(record, phase=WAITING, order=str(restarts)).annotations(), dry_run)
        try:
            self._ask(job, "restart", restarts=restarts, dry_run=dry_run)
        except Conflict:  # restarted already
            return

    def start(self, job: Job, record: RestartRecord) -> None:
        """The supervisor starts the job itself, so only the record changes."""
        self._remember(job, replace(record, phase=WAITING).annotations())

    def state(self, job: Job) -> State:
        supervised: SupervisedJob = job.handle
        if job.record.order == str(supervised.restarts):
            return State(Stage.ORDERED, runs=supervised.running)
        return State(Stage.RUNNING) if supervised.running else State(Stage.STARTING, "the supervisor starts it")

    def unfinished(self, also_in: Collection[str] = ()) -> Search:
        """A silent supervisor is an error only if its record shows a restart, or cannot be read."""
        jobs, silent = self._jobs()
        return Search([_job(job) for job in jobs if PHASE in job.annotations], silent[0] if silent else None)

    def ranks(self, job: Job) -> AskRanks:
        """Return what sends a command to the agents of the job's own processes."""

        def ask(command: RankCommand) -> Answers:
            supervised = self._ask(job, "job")
            pids = frozenset(supervised.processes) & set(descendants(supervised.pid))  # it could name another job's
            if supervised.processes and not pids:
                return Answers(silent=(f"{job.name}: cannot see that its processes descend from its supervisor",))
            return ask_folder(self._folder, command.name, command.fields, pids, command.action)

        return ask

    def _jobs(self, name: str | None = None) -> tuple[list[SupervisedJob], list[BackendError]]:
        """Ask all supervisors at once. Return the jobs, and an error for each relevant one that does not answer.

        Relevant: its record shows the `name`, or without a name a restart in progress, or cannot be read.
        """
        paths: dict[Path, bool] = {}
        pids = {}
        for file in self._sockets():
            recorded = self._recorded(file)
            relevant = recorded is None or (PHASE in recorded.annotations if name is None else recorded.name == name)
            if relevant or name is None:
                paths[self._folder / file.name] = relevant
                pids[self._folder / file.name] = file.process.pid
        jobs: list[SupervisedJob] = []
        errors: list[BackendError] = []
        for path, answer in ask_all(list(paths), {"command": "job"}, self._timeout_s, pids=pids).items():
            try:
                jobs.append(_decode(path, answer))
            except NotFound:
                continue
            except BackendError as error:
                if paths[path]:
                    errors.append(error)
        return jobs, errors

    def _recorded(self, file: JobFile) -> SupervisedJob | None:
        """Return what the supervisor wrote next to its socket; None if it cannot be read."""
        try:
            with open_plain(self._folder / file._replace(suffix=RECORD).name) as opened:
                return decode(loads(opened.read(MAX_RECORD)))
        except (OSError, BadInput, ValueError, RecursionError):
            return None

    def _sockets(self) -> list[JobFile]:
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Away(f"{self._folder}: {error.strerror}; set process.folder to the jobs' GPUFRAG_DIR") from None
        files = [file for name in names if (file := JobFile.parse(name)) and file.suffix == SOCKET]
        by_owner: Counter[int] = Counter()
        chosen = []
        for file in files:
            with suppress(OSError):
                owner = (self._folder / file.name).lstat().st_uid
                by_owner[owner] += 1
                if by_owner[owner] <= MAX_SUPERVISORS:
                    chosen.append(file)
        return chosen

    def _remember(self, job: Job, changes: Changes, dry_run: bool = False) -> SupervisedJob:
        version = job.handle.version
        return self._ask(job, "remember", version=version, annotations=dict(changes), dry_run=dry_run)

    def _ask(self, job: Job, command: str, **fields: Any) -> SupervisedJob:
        for file in self._sockets():
            if f"{file.process.pid}-{file.process.start}" == job.uid:
                path = self._folder / file.name
                answers = ask_all(
                    [path], {"command": command, **fields}, self._timeout_s, pids={path: file.process.pid}
                )
                return _decode(path, answers[path])
        raise NotFound(f"{job.name}: its supervisor has ended")


def _decode(path: Path, answer: Answer | ControlError) -> SupervisedJob:
    """Raises BackendError."""
    try:
        if isinstance(answer, ControlError):
            raise answer
        if answer.get("refused") == CONFLICT:
            raise Conflict("another client changed the job")
        job, file = decode(answer.get("job")), JobFile.parse(path.name)
        if file is None or (job.pid, job.start) != (file.process.pid, file.process.start):
            raise Away(f"{path.name}: its supervisor claims to be process {job.pid}")
        return job
    except Impostor as error:
        raise Away(f"{error}; run the restarter in the pid namespace of the supervisors") from None
    except (NotListening, AccessDenied):
        raise NotFound(f"{path.name}: its supervisor has ended, or belongs to another user") from None
    except Rejected as error:
        raise Invalid(f"the supervisor rejects the request: {error}") from None
    except (ControlError, BadInput) as error:
        raise Away(f"{path.name}: no usable answer from the supervisor: {error}") from None


def _job(job: SupervisedJob) -> Job:
    """To start a job with --restartable, or --defragment, is to opt in."""
    options = (
        {OPT_IN: "true"} | ({PAUSE: "true"} if job.paused else {}) | ({DEFRAGMENT: "true"} if job.defragment else {})
    )
    return Job(
        kind=KIND,
        name=f"job {job.name}",
        uid=job.uid,
        annotations={**job.annotations, **options},
        cost=COST,
        deleting=job.ending,
        handle=job,
    )
