"""A job under `gpufrag run --restartable`: its files in the shared folder, and its state on the control socket.

The supervisor listens on `<host>-<pid>-<start>.job.sock`, for its own user and root. Requests and answers are one line
of JSON each:

    {"command": "job"}                                      show the job
    {"command": "remember", "version": 3, "annotations": {"gpufrag.dev/restart-at": "…"}, "dry_run": false}
    {"command": "restart", "restarts": 0, "dry_run": false}

`remember` merges annotations (null removes one) and `restart` restarts the job. Both answer with the job's new state,
or with `"refused": "conflict"` if `version` or `restarts` is out of date. Next to the socket are `….job.json`, the same
state for people to read, and `….job.pause`, which a user creates to forbid restarts.
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
"""The environment variable with the number of restarts by the supervisor."""


class JobFile(NamedTuple):
    """A file of a supervisor; `suffix` is one of the three above."""

    process: FileName
    suffix: str

    @classmethod
    def parse(cls, name: str) -> JobFile | None:
        """None for any other name."""
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
    """How often torchrun may restart its workers, and how often it has."""

    max_restarts: int
    restarts: int


@dataclass(frozen=True)
class SupervisedJob:
    """The state of a job; each change increments `version`."""

    name: str
    """The label job_name of its alerts."""
    user: str
    pid: int
    """The supervisor's; unique on its host together with `start`."""
    start: int
    """Whole milliseconds of the system clock."""
    version: int
    restarts: int
    """By the supervisor or, in place, by torchrun."""
    running: bool
    """False while it is stopped for a restart."""
    in_place: bool = False
    """Only torchrun's workers are restarted."""
    elastic: Elastic | None = None
    """None if no worker of torchrun runs."""
    paused: bool = False
    ending: bool = False
    """A user has requested its end."""
    processes: tuple[int, ...] = ()
    """All living descendants of the supervisor."""
    annotations: dict[str, str] = field(default_factory=dict)
    defragment: bool = False
    """Whether to defragment before a restart."""

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
