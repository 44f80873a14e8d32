"""Slurm jobs: which job an alert means, what forbids its restart, what is sent to it, and faults at every command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

import pytest

from gpufrag.checkpoint.protocol import CheckpointFailed
from gpufrag.restarter import server
from gpufrag.restarter.backend import Away, Conflict, Denied, Invalid, NotFound, Search, Stage, State
from gpufrag.restarter.checkpoint import Checkpoint
from gpufrag.restarter.reasons import Refused
from gpufrag.restarter.record import CLAIMED, ORDER, PHASE, SUSPENDED, WAITING, RestartRecord
from gpufrag.restarter.settings import RestarterConfig
from gpufrag.restarter.slurm import commands
from gpufrag.restarter.slurm.backend import SignalCheckpointer, SlurmBackend
from gpufrag.restarter.slurm.commands import COLUMNS, Answer, show
from gpufrag.restarter.state_file import StateFile
from restarter.memory_backend import Killed
from restarter.worker_rig import LIVE, FakeTime, TimedRestarter, finish, job_alert

OPTED_IN = "gpufrag.dev/restart=true"
ROW = {
    "JobID": "7",
    "ArrayJobID": "7",
    "ArrayTaskID": "N/A",
    "UserName": "ann",
    "State": "RUNNING",
    "RestartCnt": "1",
    "Requeue": "1",
    "Reason": "None",
}
AWAY = Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")


def row(**fields: str) -> str:
    return "".join((ROW | fields)[name].ljust(width)[:width] for name, width in COLUMNS.items()) + "\n"


ARRAY = row(JobID="8", ArrayTaskID="0", State="COMPLETED") + row(ArrayTaskID="1")


@dataclass
class FakeSlurm:
    """Answers commands. `errors` by the command's first two words."""

    table: str = field(default_factory=row)
    name: str = "train"
    comment: str = OPTED_IN
    errors: dict[str, str] = field(default_factory=dict)
    ran: list[list[str]] = field(default_factory=list)

    def __call__(self, command: Sequence[str]) -> Answer:
        self.ran.append(list(command))
        if error := self.errors.get(" ".join(command[:2])):
            return Answer(1, "", error)
        texts = {"--format=%j": f"{self.name}\n", "--format=%k": f"{self.comment}\n"}
        return Answer(0, texts.get(command[-1], self.table) if command[0] == "squeue" else "", "")


@pytest.fixture
def fake():
    return FakeSlurm()


@pytest.fixture
def backend(fake, tmp_path):
    return SlurmBackend(fake, StateFile(tmp_path / "state.json"), {"ann"}, start_after_s=29.5)


@pytest.fixture
def find(backend):
    return lambda name="train-7": backend.find(job_alert(name))


def test_job_is_read_column_by_column(fake):
    job = show(fake, 7)
    assert (job.id, job.user, job.state, job.restarts, job.requeue) == (7, "ann", "RUNNING", 1, True)
    assert (job.reason, job.comment) == ("None", OPTED_IN)


def test_job_name_cannot_pass_for_another_job(fake):
    fake.name = fake.comment = "x\n" + row(UserName="root")
    assert (show(fake, 7).user, commands.name_of(fake, "7")) == ("ann", fake.name)


def test_array_task_is_found_by_its_number(fake):
    fake.table = row(JobID="8", UserName="bob") + row()
    assert show(fake, 7).user == "ann"
    assert commands.standing_for(fake, "7") == (8, 7)
    with pytest.raises(NotFound, match="no job 9"):
        show(fake, 9)


def test_array_task_is_queried_by_its_own_address(fake):
    fake.table = row(JobID="8", ArrayTaskID="0") + row(ArrayTaskID="1")
    assert (show(fake, 7).address, show(fake, 8).address) == ("7_1", "7_0")
    assert [command[3] for command in fake.ran if command[-1] == "--format=%k"] == ["--jobs=7_1", "--jobs=7_0"]


@pytest.mark.parametrize("restarts", ["many", ""])
def test_count_that_is_no_number_is_no_answer(fake, restarts):
    fake.table = row(RestartCnt=restarts)
    with pytest.raises(Away, match="instead of a number"):
        show(fake, 7)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("slurm_load_jobs error: Invalid job id specified", NotFound),
        ("Job/step already completing or completed for job 7", NotFound),
        ("Access/permission denied for job 7", Denied),
        (AWAY.err, Away),
        ("Job is in transitional state", Conflict),
        ("Requested operation is presently disabled for job 7", Invalid),
    ],
)
def test_error_message_gives_the_error(fake, text, kind):
    fake.errors["scontrol requeue"] = text
    with pytest.raises(kind, match="scontrol requeue: "):
        commands.requeue(fake, "7")


def test_command_that_hangs_or_is_missing_is_an_error():
    run = commands.runner(0.2)
    with pytest.raises(Away, match=r"no answer within 0\.2 s"):
        run([sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(Invalid, match="install Slurm's client commands"):
        run(["no-such-command"])
    assert commands.runner(30.0)(["sh", "-c", "echo $LC_ALL; exit 3"]) == Answer(3, "C\n", "")


def test_alert_names_a_job_by_name_and_number(find):
    job = find()
    assert (job.kind, job.name, job.uid) == ("slurm", "Slurm job 7", "7")
    assert job.annotations == {"gpufrag.dev/restart": "true"}
    assert find("7") == job


@pytest.mark.parametrize(
    ("name", "table", "reason"),
    [
        ("eval-7", row(), "pod-replaced"),
        ("train", row(), "no-job-id"),
        ("-0", row(), "no-job-id"),
        ("7", ARRAY, "ambiguous-name"),
    ],
)
def test_alert_about_another_job_is_refused(fake, find, name, table, reason):
    fake.table = table
    with pytest.raises(Refused) as refused:
        find(name)
    assert refused.value.reason.label == reason
    assert table == row() or "7 is a job array; name one task, for example 7_1" in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"UserName": "bob"}, "other-user"), ({"Requeue": "0"}, "no-requeue"), ({"State": "PENDING"}, "not-running")],
)
def test_harmful_restart_is_refused(backend, fake, find, fields, reason):
    fake.table = row(**fields)
    with pytest.raises(Refused) as refused:
        backend.check(find())
    assert refused.value.reason.label == reason


def test_last_task_of_an_array_is_requeued_alone(backend, fake, find):
    fake.table = ARRAY
    job = find()
    backend.stop(job, job.record)
    assert (job.finished, fake.ran[-1]) == (False, ["scontrol", "requeue", "7_1"])


def test_task_of_an_array_can_be_named(fake, find):
    fake.table = row(JobID="8", ArrayTaskID="0")
    assert find("train-7_0").uid == "8"
    assert any("--jobs=7_0" in command for command in fake.ran)


@pytest.mark.parametrize(
    ("marks", "ours"),
    [
        ({PHASE: CLAIMED}, True),
        ({PHASE: WAITING, ORDER: "1"}, True),
        ({PHASE: SUSPENDED, ORDER: "1"}, True),
        ({}, False),
        ({ORDER: "1"}, False),
    ],
)
def test_job_that_failed_by_our_signal_is_not_finished(backend, fake, find, marks, ours):
    fake.comment += " gpufrag.dev/signal=USR1"
    backend.remember(find(), marks)
    fake.table = row(State="FAILED")
    assert find().finished is not ours
    if ours:
        assert find().record.phase == WAITING
        assert backend.state(find()) == State(Stage.ORDERED, runs=False, confirmed=True)
    fake.table = row(State="COMPLETED")
    assert find().finished


@pytest.mark.parametrize(("state", "finished"), [("COMPLETED", True), ("CANCELLED", True), ("SUSPENDED", False)])
def test_finished_job_is_recognised(fake, find, state, finished):
    fake.table = row(State=state)
    assert find().finished is finished


def test_dry_run_sends_nothing(backend, fake, find):
    job = find()
    backend.stop(job, job.record, dry_run=True)
    assert {command[0] for command in fake.ran} == {"squeue"}
    assert find() == job


def test_job_that_requeued_itself_is_not_requeued_again(backend, fake, find):
    job = find()
    fake.table = row(State="PENDING", RestartCnt="2")
    backend.stop(job, job.record)
    assert ["scontrol", "requeue", "7"] not in fake.ran


def test_record_is_compared_and_found_again(backend, fake, find):
    job = find()
    backend.remember(job, {PHASE: WAITING})
    with pytest.raises(Conflict):
        backend.remember(job, {PHASE: WAITING})
    (marked,) = backend.unfinished().jobs
    assert marked.annotations == {"gpufrag.dev/restart": "true", PHASE: WAITING}
    fake.errors["squeue --noheader"] = "slurm_load_jobs error: Invalid job id specified"
    assert backend.unfinished() == Search([])
    with pytest.raises(NotFound):
        backend.read(job)


def test_comment_cannot_change_the_record(fake, find):
    fake.comment += f" {PHASE}=waiting gpufrag.dev/pause=true other words"
    assert find().annotations == {"gpufrag.dev/restart": "true", "gpufrag.dev/pause": "true"}


def test_requeued_job_is_started_early(backend, fake, find):
    job = find()
    backend.stop(job, job.record)
    assert fake.ran[-1] == ["scontrol", "requeue", "7"]
    assert backend.state(find()) == State(Stage.ORDERED, runs=True)
    fake.table = row(State="PENDING", RestartCnt="2", Reason="BeginTime")
    assert backend.state(find()).stage is Stage.STOPPED
    backend.start(find(), find().record)
    assert ["scontrol", "update", "JobId=7", "StartTime=now+30"] in fake.ran
    assert backend.state(find()) == State(Stage.STARTING, "Slurm: PENDING, reason BeginTime")
    fake.table = row(RestartCnt="2")
    assert backend.state(find()) == State(Stage.RUNNING)


def test_refused_early_start_is_no_error(backend, fake, find):
    job = find()
    backend.stop(job, job.record)
    fake.errors["scontrol update"] = "Access/permission denied for job 7"
    backend.start(find(), find().record)
    assert find().record.phase == WAITING


@pytest.mark.parametrize(
    ("reason", "needs_resources"),
    [
        ("Resources", True),
        ("Priority", True),
        ("ReqNodeNotAvail, UnavailableNodes:n1", True),
        ("JobHeldUser", False),
        ("JobHeldAdmin", False),
        ("launch failed requeued held", False),
        ("DependencyNeverSatisfied", False),
        ("InvalidAccount", False),
    ],
)
def test_pending_job_shows_slurms_reason(backend, fake, find, reason, needs_resources):
    backend.remember(find(), {PHASE: WAITING, ORDER: "1"})
    fake.table = row(State="PENDING", RestartCnt="2", Reason=reason)
    assert backend.state(find()) == State(Stage.STARTING, f"Slurm: PENDING, reason {reason}", needs_resources)


@pytest.fixture
def save(fake, find):
    """Request a checkpoint by a signal; `meanwhile` is called while the checkpointer waits."""
    seconds = map(float, count())

    def save(signal, meanwhile=lambda: None):
        fake.comment += f" gpufrag.dev/signal={signal}" if signal else ""
        return finish(SignalCheckpointer(fake, lambda: next(seconds), grace_s=30.0).save(find(), 600.0), meanwhile)

    return save


def test_job_gets_the_signal_of_its_comment(fake, save):
    result = save("B:USR1")
    assert ["scancel", "--batch", "--signal=USR1", "7"] in fake.ran
    assert result == Checkpoint("SIGUSR1 was sent 30 s ago; the job has not reported that it saved.")


def test_job_reports_that_it_saved(fake, save):
    fake.comment += " gpufrag.dev/saved=40"
    result = save("USR1", lambda: setattr(fake, "comment", fake.comment.replace("saved=40", "saved=41")))
    assert result == Checkpoint("The job reports that it saved (41).", True, 41)
    assert ["scancel", "--signal=USR1", "7"] in fake.ran


@pytest.mark.parametrize(
    "states",
    [["PENDING"], [*["RUNNING"] * 5, *["COMPLETING"] * 90, "FAILED"]],
    ids=["requeues itself", "ends after the grace"],
)
def test_job_that_ends_on_the_signal_is_awaited(fake, save, states):
    coming = chain(states)
    result = save("SIGUSR1", lambda: setattr(fake, "table", row(State=next(coming))))
    assert result.text == f"After SIGUSR1 the job is {states[-1]}."


@pytest.mark.parametrize("signal", ["KILL", "USR3", "9", "--batch"])
def test_other_signals_are_not_sent(save, signal):
    with pytest.raises(CheckpointFailed, match="is not one of HUP"):
        save(signal)


def test_job_without_a_signal_is_left_to_sigterm(fake, save):
    assert "work that it does not save on SIGTERM is lost" in save("").text
    assert all(command[0] != "scancel" for command in fake.ran)


def test_messages_contain_no_kubernetes_words(backend, find):
    texts = [find().name, find().cost, backend.state(find()).waits_for]
    assert not any(word in text for text in texts for word in ("pod", "Pod", "cluster", "owner"))


@dataclass
class FaultySlurm:
    """Requeues jobs, and fails or kills at one command, before or after it is carried out."""

    number: int | None = None
    done: bool = False
    kills: bool = False
    restarts: int = 0
    waits: bool = False
    failed: bool = False
    """Jobs fail at a signal."""
    calls: int = 0
    inner: FakeSlurm = field(default_factory=FakeSlurm)

    def __call__(self, command: Sequence[str]) -> Answer:
        fails = self.calls == self.number
        self.calls += 1
        answer = AWAY if fails and not self.done else self._carry_out(list(command))
        if fails and self.kills:
            self.kills, self.number = False, None
            raise Killed
        return AWAY if fails else answer

    def _carry_out(self, command: list[str]) -> Answer:
        match command[:2]:
            case ["scontrol", "requeue"]:
                self.restarts, self.waits, self.failed = self.restarts + 1, True, False
            case ["scancel", *_]:
                self.failed = True
            case ["scontrol", "update"]:
                self.waits = False
        state = "FAILED" if self.failed else "PENDING" if self.waits else "RUNNING"
        self.inner.table = row(RestartCnt=str(self.restarts), State=state, Reason="BeginTime" if self.waits else "None")
        return self.inner(command)


class Rig(TimedRestarter):
    """Another one on the same folder is the next restarter."""

    def __init__(self, run: FaultySlurm, folder: Path, time: FakeTime) -> None:
        folder.mkdir(exist_ok=True)
        self.state = StateFile(folder / "state.json")
        checkpointer = SignalCheckpointer(run, time.clock.steady, 10.0)
        platform = server.Platform(SlurmBackend(run, self.state, {"ann"}, 1.0), self.state, checkpointer)
        super().__init__(platform, time, RestarterConfig(policy=LIVE))

    def restart(self) -> Rig:
        return self.send(job_alert("train-7")).go()

    @property
    def record(self) -> RestartRecord:
        return RestartRecord.read(self.state.get("slurm/7").annotations)


def commands_of_a_restart(folder: Path, words: str = "") -> int:
    run = FaultySlurm()
    run.inner.comment += words
    assert Rig(run, folder, FakeTime()).restart().outcomes == ["started started", "restarted restarted"]
    return run.calls


@pytest.mark.parametrize("done", [False, True])
def test_one_failing_command_does_no_harm(tmp_path, done):
    for number in range(commands_of_a_restart(tmp_path)):
        run = FaultySlurm(number, done)
        rig = Rig(run, tmp_path / str(number), FakeTime()).restart()
        assert (run.restarts, rig.record.phase, rig.record.count) in [(1, None, 1), (0, None, 1)], number
        assert (run.restarts, run.waits) != (1, True), number


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("words", ["", " gpufrag.dev/signal=USR1"])
def test_killed_restarter_is_completed_by_the_next(tmp_path, done, words):
    for number in range(commands_of_a_restart(tmp_path, words)):
        run, time, folder = FaultySlurm(number, done, kills=True), FakeTime(), tmp_path / str(number)
        run.inner.comment += words
        with pytest.raises(Killed):
            Rig(run, folder, time).restart()
        rig = Rig(run, folder, time)
        for _ in range(3):
            rig.go()
            time.move(1300.0)  # longer than a claim lasts
        assert run.restarts <= 1, number
        assert (rig.record.phase, run.waits, run.failed) == (None, False, False), number
        assert rig.record.count <= 1, number
