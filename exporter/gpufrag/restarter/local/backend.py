"""Jobs on this host that were started with `gpufrag run --restartable`. Their supervisors remember, and restart."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...checkpoint.coordinator import AskRanks, ask_folder
from ...checkpoint.protocol import Answers, RankCommand
from ...errors import BadInput
from ...wire.codec import loads
from ...wire.control_client import AccessDenied, ControlError, NotListening, Rejected, ask
from ...wire.folder import open_plain
from ...wire.supervised_job import CONFLICT, RECORD, SOCKET, JobFile, SupervisedJob, decode
from ..alerts import Alert, Place
from ..commanded import PROCESS, Commanded, expected_restarts, owner, pod, reference
from ..errors import Away, Conflict, Invalid, NotFound, Refused
from ..kubernetes.cluster import PHASE, Body, GroupKind, Owner, Pod, Ref
from ..kubernetes.owners import Resolved
from ..off_cluster import OffCluster, annotations_in
from ..policy import OPT_IN, PAUSE
from ..state_file import StateFile

NAMESPACE = "host"
LOOPBACK = "127.0.0.1"
MAX_ANSWER = 64 << 10
TIMEOUT_S = 5.0


def locate(alert: Alert) -> Alert:
    """By its label job_name."""
    return replace(alert, place=Place(NAMESPACE, alert.labels.get("job_name") or None))


def _refusal(job: Owner) -> Refused | None:
    """In place, torchrun must be able to start its workers once more."""
    status = job.status
    if not status["in_place"]:
        return None
    elastic = status["elastic"]
    if elastic is None:
        return Refused(
            "not-elastic", f"{job.ref}: no worker of torchrun runs now; start it without --in-place, or wait"
        )
    if elastic.restarts >= elastic.max_restarts:
        spent = f"torchrun has used {elastic.restarts} of --max-restarts {elastic.max_restarts}"
        return Refused("elastic-spent", f"{job.ref}: {spent}, and would end the job; raise it at the next start")
    return None


TARGETS: Mapping[GroupKind, Commanded] = {
    PROCESS: Commanded(PROCESS, "its processes are stopped and started together, on the same GPUs", _refusal)
}


class ProcessCluster(OffCluster):
    """A Cluster of the supervisors whose sockets lie in `folder`: those of this user, or of all for root."""

    def __init__(self, folder: Path, state: StateFile, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(state)
        self._folder, self._timeout_s = folder, timeout_s

    def get_pod(self, namespace: str, name: str) -> Pod:
        """Raises Refused where not exactly one job has that name."""
        found = list(self._named(name))
        if not found:
            raise Refused(
                "no-supervisor", f"no job {name!r:.80} runs here by gpufrag run --restartable; see its --name"
            )
        if len(found) > 1:
            raise Refused("ambiguous", f"{len(found)} jobs here are called {name!r:.80}; give each a --name of its own")
        return _pod(found[0])

    def get_owner(self, ref: Ref) -> Owner:
        return _owner(self._ask(ref, "job")) if ref.group_kind == PROCESS else self.stored(ref)

    def patch(self, ref: Ref, body: Body, resource_version: str | None, dry_run: bool = False) -> Owner:
        if ref.group_kind != PROCESS:
            return self.store(ref, body, resource_version, dry_run)
        version = int(self.get_owner(ref).resource_version if resource_version is None else resource_version)
        changes = annotations_in(body)
        return _owner(self._ask(ref, "remember", version=version, annotations=changes, dry_run=dry_run))

    def create_command(self, ref: Ref, action: str, name: str, dry_run: bool = False) -> None:
        self._ask(ref, action, restarts=expected_restarts(name), dry_run=dry_run)

    def ranks(self, job: Resolved) -> AskRanks:
        """What asks the agents of the job's own processes, of all that share the folder."""

        def ask(wanted: RankCommand) -> Answers:
            processes = frozenset(self._ask(job.owner.ref, "job").processes)
            return ask_folder(self._folder, wanted.name, wanted.fields, processes)

        return ask

    def list_pods(self, namespace: str, selector: str) -> tuple[Pod, ...]:
        """The selector is the job's name."""
        return tuple(_pod(job) for job in self._named(selector))

    def list_marked(self, kind: GroupKind, namespace: str) -> tuple[Owner, ...]:
        """Raises Away for a supervisor that is silent, where its record tells of a restart, or tells nothing."""
        marked = []
        for file in self._sockets():
            try:
                job = self._job(file)
            except Away:
                job = self._recorded(file)
                if job is None or PHASE in job.annotations:
                    raise
            if job is not None and PHASE in job.annotations:
                marked.append(_owner(job))
        return tuple(marked)

    def _named(self, name: str) -> Iterator[SupervisedJob]:
        """Whoever has put another name on record is not asked: one that is stopped must hold up no other job."""
        for file in self._sockets():
            recorded = self._recorded(file)
            if recorded is None or recorded.name == name:
                job = self._job(file)
                if job is not None and job.name == name:
                    yield job

    def _job(self, file: JobFile) -> SupervisedJob | None:
        """None where nobody listens; those of other users are nobody's here."""
        with suppress(NotFound):
            return self._exchange(self._folder / file.name, {"command": "job"})
        return None

    def _recorded(self, file: JobFile) -> SupervisedJob | None:
        """What lies beside the socket; None where that cannot be read."""
        try:
            with open_plain(self._folder / file._replace(suffix=RECORD).name) as opened:
                return decode(loads(opened.read(MAX_ANSWER)))
        except (OSError, BadInput, ValueError, RecursionError):
            return None

    def _sockets(self) -> list[JobFile]:
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Away(f"{self._folder}: {error.strerror}; name the jobs' GPUFRAG_DIR by process.folder") from None
        return [file for name in names if (file := JobFile.parse(name)) and file.suffix == SOCKET]

    def _ask(self, ref: Ref, command: str, **fields: Any) -> SupervisedJob:
        for file in self._sockets():
            if f"{file.process.pid}-{file.process.start}" == ref.uid:
                return self._exchange(self._folder / file.name, {"command": command, **fields})
        raise NotFound(f"{ref} is gone: its supervisor has ended, or is not to be asked by this user")

    def _exchange(self, path: Path, request: Mapping[str, Any]) -> SupervisedJob:
        """The answer's job. Raises NotFound where nobody listens, or not to this user; or another ClusterError."""
        try:
            answer = ask(path, request, self._timeout_s)
            if answer.get("refused") == CONFLICT:
                raise Conflict("the job has changed meanwhile; read it again")
            return decode(answer.get("job"))
        except (NotListening, AccessDenied):
            raise NotFound(f"{path.name}: nobody listens there, or not to this user") from None
        except Rejected as error:
            raise Invalid(f"the job's supervisor refuses: {error}") from None
        except (ControlError, BadInput) as error:
            raise Away(f"{path.name}: no answer that could be read ({error}); it is worth another try") from None


def _ref(job: SupervisedJob) -> Ref:
    return reference(PROCESS, NAMESPACE, job.name, job.uid)


def _pod(job: SupervisedJob) -> Pod:
    return pod(_ref(job), job.name, LOOPBACK, job.running)


def _owner(job: SupervisedJob) -> Owner:
    """To be started with --restartable is to opt in."""
    annotations = {**job.annotations, OPT_IN: "true", **({PAUSE: "true"} if job.paused else {})}
    status = {
        "restarts": job.restarts,
        "running": job.running,
        "in_place": job.in_place,
        "elastic": job.elastic,
    }
    return owner(_ref(job), job.version, annotations, status, deleting=job.ending)
