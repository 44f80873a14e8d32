"""From an alert to a job of this host that was started again, and what stands against it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufrag.restarter.commanded import PROCESS, reference
from gpufrag.restarter.errors import Away, Conflict, NotFound
from gpufrag.restarter.local.backend import ProcessCluster
from gpufrag.restarter.state_file import StateFile
from restarter.off_cluster_rig import Receiver, alert, eventually, receiving
from supervisor.supervised_process import Supervised

JOB = "echo count $GPUFRAG_RESTART_COUNT >> $LOG; echo ready >> $LOG; while :; do sleep 0.1; done"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Supervised]:
    one = Supervised(tmp_path, "--name", "train", "--", "sh", "-c", JOB)
    one.until("ready")
    assert one.socket
    yield one
    one.close()


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with receiving(tmp_path, target="process", process={"folder": "agents"}) as one:
        yield one


def test_from_an_alert_to_a_restarted_job(job: Supervised, receiver: Receiver) -> None:
    receiver.send(alert("train"), alert("train"))
    receiver.until("started started", "restarted restarted")
    assert [line for line in job.lines if line.startswith("count")] == ["count 0", "count 1"]
    assert job.job.annotations["gpufrag.dev/restart-count"] == "1"
    assert "gpufrag.dev/restart-phase" not in job.job.annotations


def test_the_job_remembers_and_cools_down(job: Supervised, receiver: Receiver, tmp_path: Path) -> None:
    receiver.send(alert("train"))
    receiver.until("started started", "restarted restarted")
    with receiving(tmp_path, target="process", process={"folder": "agents"}) as another:
        another.send(alert("train"))
        another.until("refused cool-down")


def test_a_dry_run_changes_nothing(job: Supervised, tmp_path: Path) -> None:
    with receiving(tmp_path, target="process", process={"folder": "agents"}, policy={}) as receiver:
        receiver.send(alert("train"))
        receiver.until("would-restart dry-run")
    assert (job.job.version, job.job.restarts) == (1, 0)


@pytest.mark.parametrize(
    ("name", "reason"), [("other", "no-supervisor"), ("", "no-pod"), ("../train", "no-supervisor")]
)
def test_an_alert_about_no_job_of_this_host(job: Supervised, receiver: Receiver, name: str, reason: str) -> None:
    receiver.send(alert(name))
    receiver.until(f"refused {reason}")


def test_two_jobs_of_one_name_are_not_guessed_at(job: Supervised, receiver: Receiver, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "agents").symlink_to(job.folder)
    other = Supervised(second, "--name", "train", "--", "sh", "-c", JOB)
    try:
        other.until("ready")
        receiver.send(alert("train"))
        receiver.until("refused ambiguous")
    finally:
        other.close()


@pytest.fixture
def stopped(tmp_path: Path, job: Supervised) -> Iterator[Supervised]:
    """Beside `job`, and silent."""
    folder = tmp_path / "stopped"
    folder.mkdir()
    (folder / "agents").symlink_to(job.folder)
    one = Supervised(folder, "--name", "stopped", "--", "sh", "-c", JOB)
    eventually(lambda: record_of(one))
    os.kill(one.process.pid, signal.SIGSTOP)
    yield one
    os.kill(one.process.pid, signal.SIGCONT)
    one.close()


def record_of(job: Supervised) -> list[Path]:
    """One, once it is written."""
    return list(job.folder.glob(f"*-{job.process.pid}-*.job.json"))


def quick(job: Supervised, folder: Path) -> ProcessCluster:
    return ProcessCluster(job.folder, StateFile(folder / "state.json"), timeout_s=0.2)


def test_one_that_is_stopped_holds_up_no_other_job(job: Supervised, stopped: Supervised, tmp_path: Path) -> None:
    cluster = quick(job, tmp_path)
    assert cluster.get_pod("host", "train").name == "train"
    assert cluster.list_marked(PROCESS, "host") == ()
    with pytest.raises(Away, match="no answer"):
        cluster.get_pod("host", "stopped")


@pytest.mark.parametrize("torn", [False, True])
def test_one_that_is_stopped_amid_its_restart_is_searched_for_again(
    job: Supervised, stopped: Supervised, tmp_path: Path, torn: bool
) -> None:
    (record,) = record_of(stopped)
    marked = {**json.loads(record.read_text()), "annotations": {"gpufrag.dev/restart-phase": "waiting"}}
    record.write_text("{" if torn else json.dumps(marked))
    with pytest.raises(Away, match="no answer"):
        quick(job, tmp_path).list_marked(PROCESS, "host")


def test_a_pause_file_pauses(job: Supervised, receiver: Receiver) -> None:
    job.socket.with_suffix(".pause").touch()
    receiver.send(alert("train"))
    receiver.until("refused pause")


def test_a_job_that_was_told_to_end_is_left_alone(job: Supervised, receiver: Receiver) -> None:
    os.kill(job.process.pid, signal.SIGHUP)
    job.end()
    receiver.send(alert("train"))
    receiver.until("refused no-supervisor")


def test_the_supervisor_is_the_lock(job: Supervised, receiver: Receiver) -> None:
    owner = receiver.cluster.get_owner(reference(PROCESS, "host", "train", job.job.uid))
    body: Any = {"metadata": {"annotations": {"gpufrag.dev/restart-by": "me"}}}
    assert receiver.cluster.patch(owner.ref, body, owner.resource_version).annotations["gpufrag.dev/restart-by"] == "me"
    with pytest.raises(Conflict):
        receiver.cluster.patch(owner.ref, body, owner.resource_version)
    with pytest.raises(NotFound):
        receiver.cluster.get_owner(reference(PROCESS, "host", "train", "1-2"))


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_job_that_a_killed_receiver_did_not_restart_any_more_runs_on(
    job: Supervised, tmp_path: Path, dry_run: bool
) -> None:
    marked = {"gpufrag.dev/restart-phase": "waiting", "gpufrag.dev/commanded-at-version": "0"}
    assert job.ask("remember", version=1, annotations=marked)["ok"]
    with receiving(tmp_path, target="process", process={"folder": "agents"}, policy={"dry_run": dry_run}) as receiver:
        receiver.until("resumed left-behind", "over not-heard")
    assert not job.ask("job")["job"]["annotations"]
    assert job.lines.count("ready") == 1


def test_a_restart_that_a_killed_receiver_began_is_ended_by_the_next(job: Supervised, tmp_path: Path) -> None:
    marked = {"gpufrag.dev/restart-phase": "waiting", "gpufrag.dev/commanded-at-version": "0"}
    assert job.ask("remember", version=1, annotations=marked)["ok"]
    assert job.ask("restart", restarts=0)["ok"]
    with receiving(tmp_path, target="process", process={"folder": "agents"}) as receiver:
        receiver.until("resumed left-behind", "restarted restarted")
    assert job.lines.count("ready") == 2
