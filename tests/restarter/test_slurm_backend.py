"""Slurm jobs as a backend: which job an alert means, what forbids its restart, what is sent to it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from gpufrag.checkpoint.protocol import CheckpointFailed
from gpufrag.restarter.backend import Conflict, Job, NotFound, Search, Stage, State
from gpufrag.restarter.checkpoint import Checkpoint
from gpufrag.restarter.reasons import Refused
from gpufrag.restarter.record import CLAIMED, ORDER, PHASE, SUSPENDED, WAITING
from gpufrag.restarter.slurm.backend import SignalCheckpointer, SlurmBackend
from gpufrag.restarter.state_file import StateFile
from restarter.test_slurm_commands import FakeSlurm, row
from restarter.threaded_rig import alert

OPTED_IN = "gpufrag.dev/restart=true"


@pytest.fixture
def fake() -> FakeSlurm:
    return FakeSlurm(comment=OPTED_IN)


@pytest.fixture
def backend(fake: FakeSlurm, tmp_path: Path) -> SlurmBackend:
    return SlurmBackend(fake, StateFile(tmp_path / "state.json"), {"ann"}, start_after_s=29.5)


def find(backend: SlurmBackend, name: str = "train-7") -> Job:
    return backend.find(alert(name))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(Refused) as refused:
        call()
    return refused.value.reason.label


def test_alert_names_a_job_by_name_and_number(backend: SlurmBackend) -> None:
    job = find(backend)
    assert (job.kind, job.name, job.uid) == ("slurm", "Slurm job 7", "7")
    assert job.annotations == {"gpufrag.dev/restart": "true"}
    assert find(backend, "7") == job


@pytest.mark.parametrize(("name", "reason"), [("eval-7", "pod-replaced"), ("train", "no-job-id"), ("-0", "no-job-id")])
def test_alert_about_another_job_is_refused(backend: SlurmBackend, name: str, reason: str) -> None:
    assert refusal(lambda: find(backend, name)) == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"UserName": "bob"}, "other-user"), ({"Requeue": "0"}, "no-requeue"), ({"State": "PENDING"}, "not-running")],
)
def test_harmful_restart_is_refused(
    backend: SlurmBackend, fake: FakeSlurm, fields: dict[str, str], reason: str
) -> None:
    fake.table = row(**fields)
    assert refusal(lambda: backend.check(find(backend))) == reason


ARRAY = row(JobID="8", ArrayTaskID="0", State="COMPLETED") + row(ArrayTaskID="1")


def test_number_of_an_array_is_ambiguous(backend: SlurmBackend, fake: FakeSlurm) -> None:
    fake.table = ARRAY
    with pytest.raises(Refused, match="7 is a job array; name one task, for example 7_1") as refused:
        find(backend, "7")
    assert refused.value.reason.label == "ambiguous-name"


def test_last_task_of_an_array_is_requeued_alone(backend: SlurmBackend, fake: FakeSlurm) -> None:
    fake.table = ARRAY
    job = find(backend)
    backend.stop(job, job.record)
    assert (job.finished, fake.ran[-1]) == (False, ["scontrol", "requeue", "7_1"])


def test_task_of_an_array_can_be_named(backend: SlurmBackend, fake: FakeSlurm) -> None:
    fake.table = row(JobID="8", ArrayTaskID="0")
    assert find(backend, "train-7_0").uid == "8"
    assert any("--jobs=7_0" in command for command in fake.ran)


@pytest.mark.parametrize("marks", [{PHASE: CLAIMED}, {PHASE: WAITING, ORDER: "1"}, {PHASE: SUSPENDED, ORDER: "1"}])
def test_job_that_failed_by_our_signal_is_requeued(
    backend: SlurmBackend, fake: FakeSlurm, marks: dict[str, str]
) -> None:
    fake.comment += " gpufrag.dev/signal=USR1"
    backend.remember(find(backend), marks)
    fake.table = row(State="FAILED")
    failed = find(backend)
    assert (failed.finished, failed.record.phase) == (False, WAITING)
    assert backend.state(failed) == State(Stage.ORDERED, runs=False, confirmed=True)
    fake.table = row(State="COMPLETED")
    assert find(backend).finished


@pytest.mark.parametrize("marks", [{}, {ORDER: "1"}])
def test_job_that_failed_on_its_own_is_finished(backend: SlurmBackend, fake: FakeSlurm, marks: dict[str, str]) -> None:
    fake.comment += " gpufrag.dev/signal=USR1"
    backend.remember(find(backend), marks)
    fake.table = row(State="FAILED")
    assert find(backend).finished


@pytest.mark.parametrize(("state", "finished"), [("COMPLETED", True), ("CANCELLED", True), ("SUSPENDED", False)])
def test_finished_job_is_recognised(backend: SlurmBackend, fake: FakeSlurm, state: str, finished: bool) -> None:
    fake.table = row(State=state)
    assert find(backend).finished is finished


def test_dry_run_sends_nothing(backend: SlurmBackend, fake: FakeSlurm) -> None:
    job = find(backend)
    backend.stop(job, job.record, dry_run=True)
    assert {command[0] for command in fake.ran} == {"squeue"}
    assert find(backend) == job


def test_job_that_requeued_itself_is_not_requeued_again(backend: SlurmBackend, fake: FakeSlurm) -> None:
    job = find(backend)
    fake.table = row(State="PENDING", RestartCnt="2")
    backend.stop(job, job.record)
    assert ["scontrol", "requeue", "7"] not in fake.ran


def test_record_is_compared_and_found_again(backend: SlurmBackend, fake: FakeSlurm) -> None:
    job = find(backend)
    backend.remember(job, {PHASE: WAITING})
    with pytest.raises(Conflict):
        backend.remember(job, {PHASE: WAITING})
    (marked,) = backend.unfinished().jobs
    assert marked.annotations == {"gpufrag.dev/restart": "true", PHASE: WAITING}
    fake.errors["squeue --noheader"] = "slurm_load_jobs error: Invalid job id specified"
    assert backend.unfinished() == Search([])
    with pytest.raises(NotFound):
        backend.read(job)


def test_comment_cannot_change_the_record(backend: SlurmBackend, fake: FakeSlurm) -> None:
    fake.comment = f"{OPTED_IN} {PHASE}=waiting gpufrag.dev/pause=true other words"
    assert find(backend).annotations == {"gpufrag.dev/restart": "true", "gpufrag.dev/pause": "true"}


def test_requeued_job_is_started_early(backend: SlurmBackend, fake: FakeSlurm) -> None:
    job = find(backend)
    backend.stop(job, job.record)
    assert fake.ran[-1] == ["scontrol", "requeue", "7"]
    assert backend.state(find(backend)) == State(Stage.ORDERED, runs=True)
    fake.table = row(State="PENDING", RestartCnt="2", Reason="BeginTime")
    waiting = find(backend)
    assert backend.state(waiting).stage is Stage.STOPPED
    backend.start(waiting, waiting.record)
    assert fake.ran[-1] == ["scontrol", "update", "JobId=7", "StartTime=now+30"]
    assert backend.state(find(backend)) == State(Stage.STARTING, "Slurm: PENDING, reason BeginTime")
    fake.table = row(RestartCnt="2")
    assert backend.state(find(backend)) == State(Stage.RUNNING)


def test_refused_early_start_is_no_error(backend: SlurmBackend, fake: FakeSlurm) -> None:
    job = find(backend)
    backend.stop(job, job.record)
    fake.errors["scontrol update"] = "Access/permission denied for job 7"
    backend.start(find(backend), find(backend).record)
    assert find(backend).record.phase == WAITING


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
def test_pending_job_shows_slurms_reason(
    backend: SlurmBackend, fake: FakeSlurm, reason: str, needs_resources: bool
) -> None:
    backend.remember(find(backend), {PHASE: WAITING, ORDER: "1"})
    fake.table = row(State="PENDING", RestartCnt="2", Reason=reason)
    state = backend.state(find(backend))
    assert state == State(Stage.STARTING, f"Slurm: PENDING, reason {reason}", needs_resources)


def save(backend: SlurmBackend, fake: FakeSlurm, then: Callable[[FakeSlurm], object]) -> Checkpoint:
    """`then` is called while the checkpointer waits."""
    steady = iter(range(1000))
    steps = SignalCheckpointer(fake, lambda: float(next(steady)), grace_s=30.0).save(find(backend), 600.0)
    try:
        while True:
            next(steps)
            then(fake)
    except StopIteration as end:
        result: Checkpoint = end.value
        return result


def test_job_gets_the_signal_of_its_comment(backend: SlurmBackend, fake: FakeSlurm) -> None:
    fake.comment += " gpufrag.dev/signal=B:USR1"
    result = save(backend, fake, lambda fake: None)
    assert ["scancel", "--batch", "--signal=USR1", "7"] in fake.ran
    text = "SIGUSR1 was sent 30 s ago; the job has not reported that it saved."
    assert (result.saved, result.text) == (False, text)


def test_job_reports_that_it_saved(backend: SlurmBackend, fake: FakeSlurm) -> None:
    fake.comment += " gpufrag.dev/signal=USR1 gpufrag.dev/saved=40"

    def saves(fake: FakeSlurm) -> None:
        fake.comment = fake.comment.replace("saved=40", "saved=41")

    assert save(backend, fake, saves) == Checkpoint("The job reports that it saved (41).", True, 41)
    assert ["scancel", "--signal=USR1", "7"] in fake.ran


def test_job_that_requeues_itself_is_not_awaited(backend: SlurmBackend, fake: FakeSlurm) -> None:
    fake.comment += " gpufrag.dev/signal=SIGUSR1"

    def requeues(fake: FakeSlurm) -> None:
        fake.table = row(State="PENDING", RestartCnt="2")

    assert save(backend, fake, requeues).text == "After SIGUSR1 the job is PENDING."


def test_ending_job_is_awaited_beyond_the_grace(backend: SlurmBackend, fake: FakeSlurm) -> None:
    fake.comment += " gpufrag.dev/signal=USR1"
    states = chain(["RUNNING"] * 5, ["COMPLETING"] * 90, ["FAILED"])

    def ends(fake: FakeSlurm) -> None:
        fake.table = row(State=next(states))

    assert save(backend, fake, ends).text == "After SIGUSR1 the job is FAILED."


@pytest.mark.parametrize("signal", ["KILL", "USR3", "9", "--batch"])
def test_other_signals_are_not_sent(backend: SlurmBackend, fake: FakeSlurm, signal: str) -> None:
    fake.comment += f" gpufrag.dev/signal={signal}"
    with pytest.raises(CheckpointFailed, match="is not one of HUP"):
        save(backend, fake, lambda fake: None)


def test_job_without_a_signal_is_left_to_sigterm(backend: SlurmBackend, fake: FakeSlurm) -> None:
    assert "what it does not save on SIGTERM is lost" in save(backend, fake, lambda fake: None).text
    assert all(command[0] != "scancel" for command in fake.ran)


def test_messages_contain_no_kubernetes_words(backend: SlurmBackend, fake: FakeSlurm) -> None:
    job = find(backend)
    texts = [job.name, job.cost, *(str(backend.state(job).waits_for) for _ in range(1))]
    assert not any(word in text for text in texts for word in ("pod", "Pod", "cluster", "owner"))
