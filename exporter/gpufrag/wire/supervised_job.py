"""A job that `gpufrag run --restartable` supervises: its files in the agents' folder, and what its socket tells of it.

The supervisor listens on `<host>-<pid>-<start>.job.sock`, for its own user and root. Requests and answers are those of
an agent's control socket: a line of JSON each.

    {"command": "job"}                                      the job as it is
    {"command": "remember", "version": 3, "annotations": {"gpufrag.dev/restart-at": "…"}, "dry_run": false}
    {"command": "restart", "restarts": 0, "dry_run": false}

`remember` merges annotations (null removes one) and `restart` starts the job anew; both answer with the job as it then
is, or with `"refused": "conflict"` unless `version` and `restarts` are still what the caller believes.
Beside the socket lie `….job.json`, the same for people to read, and `….job.pause`, which they make to have no restarts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import BadInput
from . import codec as json_record
from .folder import SAMPLE_SUFFIX, FileName

SOCKET, RECORD, PAUSE = ".job.sock", ".job.json", ".job.pause"
CONFLICT = "conflict"
RESTART_COUNT = "GPUFRAG_RESTART_COUNT"
"""The variable by which a job learns how often its supervisor has started it again."""


class JobFile(NamedTuple):
    """A file of the supervisor that `process` names; `suffix` is one of the three above."""

    process: FileName
    suffix: str

    @classmethod
    def parse(cls, name: str) -> JobFile | None:
        """None where no supervisor gives such names."""
        for suffix in (SOCKET, RECORD, PAUSE):
            if name.endswith(suffix):
                process = FileName.parse(name.removesuffix(suffix) + SAMPLE_SUFFIX)
                return cls(process, suffix) if process else None
        return None

    @property
    def name(self) -> str:
        return self.process.stem + self.suffix


@dataclass(frozen=True)
class Elastic:
    """What torchrun tells its workers: how often it may start them again, and how often it has."""

    max_restarts: int
    restarts: int


@dataclass(frozen=True)
class SupervisedJob:
    """One moment of a job; `version` names the moment."""

    name: str
    """What alerts call it: their label job_name."""
    user: str
    pid: int
    """Of the supervisor; with `start` it is unique on its host."""
    start: int
    """Whole milliseconds of the system clock."""
    version: int
    restarts: int
    """How often it was started again, by the supervisor or, in place, by torchrun."""
    running: bool
    """False while it is stopped for a restart."""
    in_place: bool = False
    """Its workers are restarted, and torchrun stays."""
    elastic: Elastic | None = None
    """None where no worker of torchrun runs now."""
    paused: bool = False
    ending: bool = False
    """Somebody has told it to end."""
    processes: tuple[int, ...] = ()
    """All that descend from the supervisor now."""
    annotations: dict[str, str] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        return f"{self.pid}-{self.start}"


def encode(job: SupervisedJob) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(json.dumps(job, default=vars))
    return decoded


def decode(raw: Any) -> SupervisedJob:
    """Raises BadInput."""
    try:
        return json_record.read(SupervisedJob, raw)
    except json_record.Misfit as misfit:
        raise BadInput(f"not a supervised job: {misfit}") from None
