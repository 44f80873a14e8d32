"""Slurm's commands and their output.

No shell is used. What a user can write into a job (its name, its comment) is queried separately, so that no text can
pass for another field.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..backend import Away, BackendError, Conflict, Denied, Invalid, NotFound

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
"""Columns of squeue and their widths."""


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Runner = Callable[[Sequence[str]], Answer]
"""Runs a command. Raises Away if it does not end in time, Invalid if it is not installed."""


@dataclass(frozen=True)
class SlurmJob:
    """One job at one moment."""

    id: int
    """Its own number, which the last task of an array shares with the array."""
    address: str
    """Names this job only: its number, or `4_1` for a task of array 4."""
    user: str
    state: str
    restarts: int
    requeue: bool
    """Whether it may be requeued."""
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
            raise Away(f"{command[0]}: no answer within {timeout_s:g} s") from None
        except OSError as error:
            raise Invalid(f"{command[0]}: {error.strerror}; install Slurm's client commands on this host") from None
        out, err = (text[:MAX_ANSWER].decode(errors="replace") for text in (done.stdout, done.stderr))
        return Answer(done.returncode, out, err)

    return run


def show(run: Runner, job: int) -> SlurmJob:
    """Raises NotFound if Slurm does not know the job, or no longer."""
    fields = next((one for one in _records(run, str(job)) if one["JobID"] == str(job)), None)
    if fields is None:
        raise NotFound(f"Slurm has no job {job}")
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
    """Return the numbers of all jobs that `address` names; the number of an array names all its tasks."""
    return tuple(_number(fields["JobID"]) for fields in _records(run, address))


def name_of(run: Runner, address: str) -> str:
    return _squeue(run, address, "--format=%j")


def requeue(run: Runner, address: str) -> None:
    _checked(run, ["scontrol", "requeue", address])


def start_in(run: Runner, address: str, seconds: int) -> None:
    """A requeued job waits for two minutes by default."""
    _checked(run, ["scontrol", "update", f"JobId={address}", f"StartTime=now+{seconds}"])


def signal(run: Runner, address: str, name: str, batch: bool) -> None:
    """Send a signal to the tasks of the job's steps, or to its batch script only."""
    _checked(run, ["scancel", *(["--batch"] if batch else []), f"--signal={name}", address])


def _squeue(run: Runner, address: str, wanted: str) -> str:
    command = ["squeue", "--noheader", "--states=all", f"--jobs={address}", wanted]
    return _checked(run, command).removesuffix("\n")


def _records(run: Runner, address: str) -> list[dict[str, str]]:
    """Split the output by the widths of the columns."""
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
    raise Away(f"squeue printed {text!r:.40} instead of a number: this version may not be supported")


_ERRORS: Sequence[tuple[str, type[BackendError]]] = (
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
    """Return the output. Raises the BackendError that the error message stands for."""
    answer = run(command)
    if answer.code == 0:
        return answer.out
    message = " ".join((answer.err or answer.out).split())
    kind = next((kind for words, kind in _ERRORS if words in message.lower()), Invalid)
    raise kind(f"{' '.join(command[:2])}: {message:.300}")
