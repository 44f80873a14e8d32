"""Jobs on this host that were started with `gpufrag run --restartable`, as a JobBackend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...checkpoint.rank_sockets import broadcast
from ...checkpoint.records import Ask, Heard
from ...errors import BadInput, Unavailable
from ...wire.codec import loads
from ...wire.control_client import AccessDenied, Answer, ControlError, NotListening, Rejected, ask, ask_all
from ...wire.folder import open_plain
from ...wire.supervised_job import CONFLICT, RECORD, SOCKET, JobFile, SupervisedJob, decode
from .. import reasons
from ..alerts import Alert
from ..backend import Away, BackendError, Changes, Conflict, Invalid, Job, NotFound, Stage, State
from ..checkpoint import Asker
from ..reasons import Refused
from ..record import OPT_IN, PAUSE, PHASE, WAITING, RestartRecord

KIND = "process"
COST = "its processes stop and start together, on the same GPUs"
MAX_RECORD = 64 << 10
TIMEOUT_S = 5.0


class LocalBackend:
    """Asks the supervisors whose sockets are in `folder`: those of this user, or of all users for root."""

    def __init__(self, folder: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._folder, self._timeout_s = folder, timeout_s

    def find(self, alert: Alert, earlier: Job | None = None) -> Job:
        """Find the job by the alert's label job_name. A supervisor that recorded another name is not asked."""
        name = alert.labels.get("job_name", "")
        named = [file for file in self._sockets() if (found := self._recorded(file)) is None or found.name == name]
        jobs, error = self._ask_all(named)
        jobs = [job for job in jobs if job.name == name]
        if error is not None and not jobs:
            raise error
        if not jobs:
            raise Refused(reasons.NO_SUPERVISOR, repr(name[:80]))
        if len(jobs) > 1:
            raise Refused(reasons.AMBIGUOUS_NAME, f"{len(jobs)} jobs {name[:80]!r}")
        if earlier is not None and jobs[0].uid != earlier.uid:
            raise Refused(reasons.POD_REPLACED, earlier.name)
        return _job(jobs[0])

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
        changes = replace(record, phase=WAITING, order=str(restarts)).annotations()
        self._remember(job, changes, dry_run)
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
        return State(Stage.RUNNING) if supervised.running else State(Stage.STARTING, "the supervisor has not started it")

    def unfinished(self) -> tuple[list[Job], BackendError | None]:
        """A silent supervisor is an error only if its record shows a restart, or cannot be read."""
        jobs, _ = self._ask_all(self._sockets())
        answered = {job.uid for job in jobs}
        error: BackendError | None = None
        for file in self._sockets():
            recorded = self._recorded(file)
            silent = _uid(file) not in answered and self._listens(file)
            if silent and (recorded is None or PHASE in recorded.annotations):
                error = Away(f"{file.name}: the supervisor does not answer")
        return [_job(job) for job in jobs if PHASE in job.annotations], error

    def ranks(self, job: Job) -> Asker:
        """Return what sends a request to the agents of the job's own processes."""

        def send(request: Ask) -> Heard:
            processes = frozenset(self._ask(job, "job").processes)
            return broadcast(self._folder, request.command, request.fields, processes)

        return send
