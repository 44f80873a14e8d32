"""The output of Slurm's commands as records; no text of a user passes for another field."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from gpufrag.restarter.backend import Away, BackendError, Conflict, Denied, Invalid, NotFound
from gpufrag.restarter.slurm import commands
from gpufrag.restarter.slurm.commands import COLUMNS, Answer, show


def row(**fields: str) -> str:
    found = {
        "JobID": "7",
        "ArrayJobID": "7",
        "ArrayTaskID": "N/A",
        "UserName": "ann",
        "State": "RUNNING",
        "RestartCnt": "1",
        "Requeue": "1",
        "Reason": "None",
    }
    return "".join((found | fields)[name].ljust(width)[:width] for name, width in COLUMNS.items()) + "\n"


@dataclass
class FakeSlurm:
    """`errors` by the command's first two words."""

    table: str = field(default_factory=row)
    name: str = "train"
    comment: str = ""
    errors: dict[str, str] = field(default_factory=dict)
    ran: list[list[str]] = field(default_factory=list)

    def __call__(self, command: Sequence[str]) -> Answer:
        self.ran.append(list(command))
        if error := self.errors.get(" ".join(command[:2])):
            return Answer(1, "", error)
        return Answer(0, self._out(command), "")

    def _out(self, command: Sequence[str]) -> str:
        texts = {"--format=%j": self.name, "--format=%k": self.comment}
        if command[0] == "squeue":
            return texts[command[-1]] + "\n" if command[-1] in texts else self.table
        return ""


def test_job_is_read_column_by_column() -> None:
    job = show(FakeSlurm(comment="gpufrag.dev/restart=true"), 7)
    assert (job.id, job.user, job.state, job.restarts, job.requeue) == (7, "ann", "RUNNING", 1, True)
    assert (job.reason, job.comment) == ("None", "gpufrag.dev/restart=true")


def test_job_name_cannot_pass_for_another_job() -> None:
    hostile = "x\n" + row(UserName="root")
    fake = FakeSlurm(name=hostile, comment=hostile)
    assert (show(fake, 7).user, commands.name_of(fake, "7")) == ("ann", hostile)


def test_task_of_an_array_is_found_by_its_number() -> None:
    table = row(JobID="8", UserName="bob") + row()
    assert show(FakeSlurm(table=table), 7).user == "ann"
    assert commands.standing_for(FakeSlurm(table=table), "7") == (8, 7)
    with pytest.raises(NotFound, match="no job 9"):
        show(FakeSlurm(table=table), 9)


def test_task_of_an_array_is_queried_by_its_own_address() -> None:
    fake = FakeSlurm(table=row(JobID="8", ArrayTaskID="0") + row(ArrayTaskID="1"))
    assert (show(fake, 7).address, show(fake, 8).address) == ("7_1", "7_0")
    assert [command[3] for command in fake.ran if command[-1] == "--format=%k"] == ["--jobs=7_1", "--jobs=7_0"]


@pytest.mark.parametrize("table", [row(RestartCnt="many"), row(RestartCnt="")])
def test_count_that_is_no_number_is_no_answer(table: str) -> None:
    with pytest.raises(Away, match="instead of a number"):
        show(FakeSlurm(table=table), 7)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("slurm_load_jobs error: Invalid job id specified", NotFound),
        ("Job/step already completing or completed for job 7", NotFound),
        ("Access/permission denied for job 7", Denied),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", Away),
        ("Job is in transitional state", Conflict),
        ("Requested operation is presently disabled for job 7", Invalid),
    ],
)
def test_error_message_gives_the_error(text: str, kind: type[BackendError]) -> None:
    with pytest.raises(kind, match="scontrol requeue: "):
        commands.requeue(FakeSlurm(errors={"scontrol requeue": text}), "7")


def test_command_that_hangs_or_is_missing_is_an_error() -> None:
    run = commands.runner(0.2)
    with pytest.raises(Away, match=r"no answer within 0\.2 s"):
        run([sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(Invalid, match="install Slurm's client commands"):
        run(["no-such-command"])
    assert commands.runner(30.0)(["sh", "-c", "echo $LC_ALL; exit 3"]) == Answer(3, "C\n", "")
