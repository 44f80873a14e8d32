"""Slurm's own commands, and what they answer: the only place that knows their words.

No shell is involved. Whatever a user can write into a job (its name, its comment) is asked for by itself, so that no
text can pass for another field.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import Away, ClusterError, Conflict, Denied, Invalid, NotFound

MAX_ANSWER = 1 << 20
COLUMNS: Mapping[str, int] = {
    "JobID": 20,
    "ArrayJobID": 20,
    "ArrayTaskID": 64,
    "UserName": 64,
    "State": 24,
    "RestartCnt": 12,
    "Requeue": 8,
    "Reason": 64,
}
"""Of squeue, and how wide each is."""


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Runner = Callable[[Sequence[str]], Answer]
"""Runs a command; raises Away where it does not end in time, Invalid where it is not installed."""


@dataclass(frozen=True)
class SlurmJob:
    """One job, at one moment."""

    id: int
    """A number of its own, which the last task of an array shares with the array."""
    address: str
    """What stands for this job alone: its number, or `4_1` for a task of array 4."""
    user: str
    state: str
    restarts: int
    requeue: bool
    """Whether it may be put back into the queue."""
    reason: str
    """Why it waits."""
    comment: str


def runner(timeout_s: float) -> Runner:
    environment = {**os.environ, "LC_ALL": "C"}

    def run(command: Sequence[str]) -> Answer:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, env=environment, check=False
            )
        except subprocess.TimeoutExpired:
            raise Away(f"{command[0]}: no answer within {timeout_s:g} s; it is worth another try") from None
        except OSError as error:
            raise Invalid(
                f"{command[0]}: {error.strerror}; install Slurm's commands where the restarter runs"
            ) from None
        out, err = (text[:MAX_ANSWER].decode(errors="replace") for text in (done.stdout, done.stderr))
        return Answer(done.returncode, out, err)

    return run


def show(run: Runner, job: int) -> SlurmJob:
    """Raises NotFound for one that Slurm does not know, or no longer."""
    fields = next((one for one in _records(run, str(job)) if one["JobID"] == str(job)), None)
    if fields is None:
        raise NotFound(f"Slurm has no job {job} any more")
    task = fields["ArrayTaskID"]
    address = f"{fields['ArrayJobID']}_{task}" if task.isdecimal() else str(job)
    return SlurmJob(
        id=job,
        address=address,
        user=fields["UserName"],
        state=fields["State"],
        restarts=_number(fields["RestartCnt"]),
        requeue=fields["Requeue"] == "1",
        reason=fields["Reason"],
        comment=_squeue(run, address, "--format=%k"),
    )


def standing_for(run: Runner, address: str) -> tuple[int, ...]:
    """The numbers of all jobs that `address` stands for: of an array's bare number, those of all its tasks."""
    return tuple(_number(fields["JobID"]) for fields in _records(run, address))


def name_of(run: Runner, address: str) -> str:
    return _squeue(run, address, "--format=%j")


def nodes_of(run: Runner, address: str) -> tuple[str, ...]:
    """Empty for a job that waits."""
    nodes = _squeue(run, address, "--format=%N").split()
    return tuple(_checked(run, ["scontrol", "show", "hostnames", nodes[0]]).split()) if nodes else ()


def requeue(run: Runner, address: str) -> None:
    _checked(run, ["scontrol", "requeue", address])


def start_in(run: Runner, address: str, seconds: int) -> None:
    """A job that was put back waits for two minutes by itself."""
    _checked(run, ["scontrol", "update", f"JobId={address}", f"StartTime=now+{seconds}"])


def signal(run: Runner, address: str, name: str, batch: bool) -> None:
    """To the tasks of the job's steps, or to its batch script alone."""
    _checked(run, ["scancel", *(["--batch"] if batch else []), f"--signal={name}", address])


def _squeue(run: Runner, address: str, wanted: str) -> str:
    command = ["squeue", "--noheader", "--states=all", f"--jobs={address}", wanted]
    return _checked(run, command).removesuffix("\n")


def _records(run: Runner, address: str) -> list[dict[str, str]]:
    """By the widths of the columns."""
    columns = ",".join(f"{name}:{width}" for name, width in COLUMNS.items())
    return [_fields(line) for line in _squeue(run, address, f"--Format={columns}").splitlines()]


def _fields(line: str) -> dict[str, str]:
    start, found = 0, {}
    for name, width in COLUMNS.items():
        found[name] = line[start : start + width].strip()
        start += width
    return found


def _number(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise Away(f"squeue answered {text!r:.40} where a number belongs; see whether its version is known")


_ERRORS: Sequence[tuple[str, type[ClusterError]]] = (
    ("invalid job id", NotFound),
    ("already completing or completed", NotFound),
    ("permission denied", Denied),
    ("access denied", Denied),
    ("not pending nor running", Conflict),
    ("in transitional state", Conflict),
    ("contact slurm controller", Away),
    ("timed out", Away),
    ("protocol authentication error", Away),
    ("zero bytes were transmitted", Away),
)


def _checked(run: Runner, command: Sequence[str]) -> str:
    """The output. Raises the ClusterError that the commands' own words stand for."""
    answer = run(command)
    if answer.code == 0:
        return answer.out
    said = " ".join((answer.err or answer.out).split())
    kind = next((kind for words, kind in _ERRORS if words in said.lower()), Invalid)
    raise kind(f"{' '.join(command[:2])}: {said:.300}")
