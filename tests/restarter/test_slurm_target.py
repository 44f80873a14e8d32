"""Jobs of Slurm as a cluster: which one an alert means, what stands against its restart, what is asked of it."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from gpufrag.checkpoint.protocol import CheckpointFailed
from gpufrag.restarter.alerts import Place
from gpufrag.restarter.checkpoint import Checkpoint
from gpufrag.restarter.clock import Clock
from gpufrag.restarter.commanded import SLURM_JOB
from gpufrag.restarter.errors import Conflict, NotFound, Refused
from gpufrag.restarter.kubernetes.owners import Resolved, resolve
from gpufrag.restarter.kubernetes.steps import Command
from gpufrag.restarter.slurm import backend as slurm
from gpufrag.restarter.state_file import StateFile
from restarter.off_cluster_rig import alert
from restarter.test_slurm_commands import FakeSlurm, row

TARGETS = slurm.targets({"ann"}, hurry=True)
OPTED_IN = "gpufrag.dev/restart=true"


@pytest.fixture
def fake() -> FakeSlurm:
    return FakeSlurm(comment=OPTED_IN)


@pytest.fixture
def cluster(fake: FakeSlurm, tmp_path: Path) -> slurm.SlurmCluster:
    return slurm.SlurmCluster(fake, StateFile(tmp_path / "state.json"), start_after_s=29.5)


def resolved(cluster: slurm.SlurmCluster, name: str = "train-7") -> Resolved:
    return resolve(cluster, slurm.NAMESPACE, name, targets=TARGETS)


def test_an_alert_names_a_job_by_name_and_number(cluster: slurm.SlurmCluster) -> None:
    assert slurm.locate(alert("train-7")).place == Place("slurm", "train-7")
    owner = resolved(cluster).owner
    assert (str(owner.ref), owner.annotations) == (
        "Job.slurm.schedmd.com slurm/7",
        {"gpufrag.dev/restart": "true"},
    )
    assert resolved(cluster, "7").owner == owner


@pytest.mark.parametrize(
    ("name", "reason"), [("eval-7", "pod-replaced"), ("train", "no-job-number"), ("-0", "no-job-number")]
)
def test_a_number_that_is_another_job_s_by_now(cluster: slurm.SlurmCluster, name: str, reason: str) -> None:
    with pytest.raises(Refused) as refusal:
        resolved(cluster, name)
    assert refusal.value.reason == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"UserName": "bob"}, "other-user"),
        ({"Requeue": "0"}, "no-requeue"),
        ({"State": "PENDING"}, "not-running"),
    ],
)
def test_what_stands_against_a_restart(
    cluster: slurm.SlurmCluster, fake: FakeSlurm, fields: dict[str, str], reason: str
) -> None:
    fake.table = row(**fields)
    it = resolved(cluster)
    with pytest.raises(Refused) as refusal:
        TARGETS[SLURM_JOB].plan(it.owner, it.pod)
    assert refusal.value.reason == reason


ARRAY = row(JobID="8", ArrayTaskID="0", State="COMPLETED") + row(ArrayTaskID="1")


def test_a_bare_number_may_stand_for_a_whole_array(cluster: slurm.SlurmCluster, fake: FakeSlurm) -> None:
    fake.table = ARRAY
    with pytest.raises(Refused, match="7 is a whole array of Slurm's; name one task of it, as 7_1") as refusal:
        resolved(cluster, "7")
    assert refusal.value.reason == "ambiguous"


def test_the_last_task_of_an_array_has_the_array_s_number(cluster: slurm.SlurmCluster, fake: FakeSlurm) -> None:
    fake.table = ARRAY
    owner = resolved(cluster).owner
    cluster.create_command(owner.ref, "restart", "gpufrag-7-1")
    assert (owner.finished, fake.ran[-1]) == (False, ["scontrol", "requeue", "7_1"])


def test_a_task_may_be_named_as_such(cluster: slurm.SlurmCluster, fake: FakeSlurm) -> None:
    fake.table = row(JobID="8", ArrayTaskID="0")
    assert str(resolved(cluster, "train-7_0").owner.ref) == "Job.slurm.schedmd.com slurm/8"
    assert any("--jobs=7_0" in command for command in fake.ran)


@pytest.mark.parametrize("phase", ["claimed", "waiting"])
def test_a_job_that_failed_of_our_signal_is_put_back(cluster: slurm.SlurmCluster, fake: FakeSlurm, phase: str) -> None:
    fake.comment += " gpufrag.dev/signal=USR1"
    it = resolved(cluster)
    marks = {"gpufrag.dev/restart-phase": phase}
    if phase == "waiting":
        marks["gpufrag.dev/commanded-at-version"] = "1"
    cluster.patch(it.owner.ref, {"metadata": {"annotations": marks}}, None)
    fake.table = row(State="FAILED")
    failed = cluster.get_owner(it.owner.ref)
    assert (failed.finished, failed.annotations["gpufrag.dev/restart-phase"]) == (False, "waiting")
    assert TARGETS[SLURM_JOB].rest(failed) == (Command(1, action="restart"),)
    fake.table = row(State="COMPLETED")
    assert cluster.get_owner(it.owner.ref).finished


@pytest.mark.parametrize("marks", [{}, {"gpufrag.dev/commanded-at-version": "1"}])
def test_a_job_that_failed_by_itself_has_ended(
    cluster: slurm.SlurmCluster, fake: FakeSlurm, marks: dict[str, str]
) -> None:
    fake.comment += " gpufrag.dev/signal=USR1"
    ref = resolved(cluster).owner.ref
    cluster.patch(ref, {"metadata": {"annotations": marks}}, None)
    fake.table = row(State="FAILED")
    assert cluster.get_owner(ref).finished


@pytest.mark.parametrize(("state", "finished"), [("COMPLETED", True), ("CANCELLED", True), ("SUSPENDED", False)])
def test_a_job_that_has_ended(cluster: slurm.SlurmCluster, fake: FakeSlurm, state: str, finished: bool) -> None:
    fake.table = row(State=state)
    assert resolved(cluster).owner.finished is finished


def test_a_command_is_for_the_run_that_it_was_meant_for(cluster: slurm.SlurmCluster, fake: FakeSlurm) -> None:
    ref = resolved(cluster).owner.ref
    cluster.create_command(ref, "restart", "gpufrag-7-1", dry_run=True)
    assert ["scontrol", "requeue", "7"] not in fake.ran
    cluster.create_command(ref, "restart", "gpufrag-7-1")
    assert fake.ran[-1] == ["scontrol", "requeue", "7"]
    with pytest.raises(Conflict, match="already"):
        cluster.create_command(ref, "restart", "gpufrag-7-0")


def test_what_is_remembered_is_swapped_and_found_again(cluster: slurm.SlurmCluster, fake: FakeSlurm) -> None:
    owner = resolved(cluster).owner
    body: Any = {"metadata": {"annotations": {"gpufrag.dev/restart-phase": "waiting"}}}
    cluster.patch(owner.ref, body, owner.resource_version)
    with pytest.raises(Conflict):
        cluster.patch(owner.ref, body, owner.resource_version)
    (marked,) = cluster.list_marked(SLURM_JOB, slurm.NAMESPACE)
    assert marked.annotations == {"gpufrag.dev/restart": "true", "gpufrag.dev/restart-phase": "waiting"}
    fake.errors["squeue --noheader"] = "slurm_load_jobs error: Invalid job id specified"
    assert cluster.list_marked(SLURM_JOB, slurm.NAMESPACE) == ()
    with pytest.raises(NotFound):
        cluster.get_owner(owner.ref)


def test_a_user_cannot_write_the_restarter_s_memory(cluster: slurm.SlurmCluster, fake: FakeSlurm) -> None:
    fake.comment = f"{OPTED_IN} gpufrag.dev/restart-phase=waiting gpufrag.dev/pause=true other words"
    assert resolved(cluster).owner.annotations == {"gpufrag.dev/restart": "true", "gpufrag.dev/pause": "true"}


def test_a_job_that_was_put_back_need_not_wait(cluster: slurm.SlurmCluster, fake: FakeSlurm) -> None:
    target, owner = TARGETS[SLURM_JOB], resolved(cluster).owner
    (command,) = target.plan(owner, resolved(cluster).pod)
    assert isinstance(command, Command)
    command.run(cluster, owner, {})
    assert target.rest(cluster.get_owner(owner.ref)) == (command,)
    fake.table = row(State="PENDING", RestartCnt="2", Reason="BeginTime")
    waiting = cluster.get_owner(owner.ref)
    (start,) = target.rest(waiting)
    assert isinstance(start, Command)
    start.run(cluster, waiting, {})
    assert fake.ran[-1] == ["scontrol", "update", "JobId=7", "StartTime=now+30"]
    assert not target.running(cluster, waiting)
    fake.table = row(RestartCnt="2")
    assert target.running(cluster, cluster.get_owner(owner.ref))


def save(cluster: slurm.SlurmCluster, fake: FakeSlurm, then: Any) -> Checkpoint:
    """`then` is done to the fake while the checkpointer waits."""
    steady = iter(range(1000))
    checkpointer = slurm.SignalCheckpointer(fake, Clock(steady=lambda: float(next(steady))), grace_s=30.0)
    steps = checkpointer.save(resolved(cluster), 600.0)
    try:
        while True:
            next(steps)
            then(fake)
    except StopIteration as end:
        result: Checkpoint = end.value
        return result


def test_a_job_is_signalled_as_it_wishes(cluster: slurm.SlurmCluster, fake: FakeSlurm) -> None:
    fake.comment += " gpufrag.dev/signal=B:USR1"
    result = save(cluster, fake, lambda fake: None)
    assert ["scancel", "--batch", "--signal=USR1", "7"] in fake.ran
    assert (result.saved, result.text) == (
        False,
        "SIGUSR1 was sent 30 s ago; the job has not said whether it has saved.",
    )


def test_a_job_that_says_that_it_has_saved_is_believed(cluster: slurm.SlurmCluster, fake: FakeSlurm) -> None:
    fake.comment += " gpufrag.dev/signal=USR1 gpufrag.dev/saved=40"

    def saves(fake: FakeSlurm) -> None:
        fake.comment = fake.comment.replace("saved=40", "saved=41")

    assert save(cluster, fake, saves) == Checkpoint("The job says that it has saved (41).", True, 41)
    assert ["scancel", "--signal=USR1", "7"] in fake.ran


def test_a_job_that_puts_itself_back_is_not_waited_for(cluster: slurm.SlurmCluster, fake: FakeSlurm) -> None:
    fake.comment += " gpufrag.dev/signal=SIGUSR1"

    def requeues(fake: FakeSlurm) -> None:
        fake.table = row(State="PENDING", RestartCnt="2")

    assert save(cluster, fake, requeues).text == "After SIGUSR1 the job is PENDING."


def test_how_a_job_ends_is_waited_for(cluster: slurm.SlurmCluster, fake: FakeSlurm) -> None:
    fake.comment += " gpufrag.dev/signal=USR1"
    states = chain(["RUNNING"] * 5, ["COMPLETING"] * 90, ["FAILED"])  # the grace is 30

    def ends(fake: FakeSlurm) -> None:
        fake.table = row(State=next(states))

    assert save(cluster, fake, ends).text == "After SIGUSR1 the job is FAILED."


@pytest.mark.parametrize("wish", ["KILL", "USR3", "9", "--batch"])
def test_a_signal_that_is_none_is_not_sent(cluster: slurm.SlurmCluster, fake: FakeSlurm, wish: str) -> None:
    fake.comment += f" gpufrag.dev/signal={wish}"
    with pytest.raises(CheckpointFailed, match="not one of HUP"):
        save(cluster, fake, lambda fake: None)


def test_a_job_without_a_wish_is_left_to_its_sigterm(cluster: slurm.SlurmCluster, fake: FakeSlurm) -> None:
    assert "what it does not save on SIGTERM is lost" in save(cluster, fake, lambda fake: None).text
    assert all(command[0] != "scancel" for command in fake.ran)
