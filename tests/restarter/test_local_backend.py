"""Jobs of this host as a backend: from an alert to a restarted job, and what forbids a restart."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpufrag.checkpoint.protocol import RankCommand
from gpufrag.restarter.backend import Away, Conflict, NotFound, Search
from gpufrag.restarter.local import backend as local
from gpufrag.restarter.local.backend import LocalBackend
from gpufrag.restarter.record import BY, ORDER, PHASE, WAITING
from gpufrag.wire.control_server import ControlServer
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.supervised_job import SupervisedJob, encode
from restarter.threaded_rig import ThreadedRestarter, alert, eventually, restarting
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
def restarter(tmp_path: Path) -> Iterator[ThreadedRestarter]:
    with restarting(tmp_path, target="process", process={"folder": "agents"}) as one:
        yield one


def test_alert_restarts_its_job_once(job: Supervised, restarter: ThreadedRestarter) -> None:
    restarter.send(alert("train"), alert("train"))
    restarter.until("started started", "restarted restarted")
    assert [line for line in job.lines if line.startswith("count")] == ["count 0", "count 1"]
    assert job.job.annotations["gpufrag.dev/restart-count"] == "1"
    assert "gpufrag.dev/restart-phase" not in job.job.annotations


def test_job_keeps_its_cooldown(job: Supervised, restarter: ThreadedRestarter, tmp_path: Path) -> None:
    restarter.send(alert("train"))
    restarter.until("started started", "restarted restarted")
    with restarting(tmp_path, target="process", process={"folder": "agents"}) as another:
        another.send(alert("train"))
        another.until("refused cooldown")


def test_dry_run_changes_nothing(job: Supervised, tmp_path: Path) -> None:
    with restarting(tmp_path, target="process", process={"folder": "agents"}, policy={}) as restarter:
        restarter.send(alert("train"))
        restarter.until("would-restart dry-run")
    assert (job.job.version, job.job.restarts) == (1, 0)


@pytest.mark.parametrize(
    ("name", "reason"), [("other", "no-supervisor"), ("", "no-supervisor"), ("../train", "no-supervisor")]
)
def test_alert_about_an_unknown_job_is_refused(
    job: Supervised, restarter: ThreadedRestarter, name: str, reason: str
) -> None:
    restarter.send(alert(name))
    restarter.until(f"refused {reason}")


def test_two_jobs_of_one_name_are_refused(job: Supervised, restarter: ThreadedRestarter, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "agents").symlink_to(job.folder)
    other = Supervised(second, "--name", "train", "--", "sh", "-c", JOB)
    try:
        other.until("ready")
        restarter.send(alert("train"))
        restarter.until("refused ambiguous-name")
    finally:
        other.close()


@pytest.fixture
def stopped(tmp_path: Path, job: Supervised) -> Iterator[Supervised]:
    """Another job, whose supervisor is stopped."""
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
    """Return its record, once it is written."""
    return list(job.folder.glob(f"*-{job.process.pid}-*.job.json"))


def quick(job: Supervised) -> LocalBackend:
    return LocalBackend(job.folder, timeout_s=0.2)


def test_stopped_supervisor_delays_no_other_job(job: Supervised, stopped: Supervised) -> None:
    backend = quick(job)
    assert backend.find(alert("train")).name == "job train"
    assert backend.unfinished() == Search([])
    with pytest.raises(Away, match="no usable answer"):
        backend.find(alert("stopped"))


@pytest.mark.parametrize("torn", [False, True])
def test_stopped_supervisor_in_a_restart_makes_the_search_incomplete(
    job: Supervised, stopped: Supervised, torn: bool
) -> None:
    (record,) = record_of(stopped)
    marked = {**json.loads(record.read_text()), "annotations": {PHASE: WAITING}}
    record.write_text("{" if torn else json.dumps(marked))
    search = quick(job).unfinished()
    assert (search.jobs, type(search.error)) == ([], Away)
    assert f"-{stopped.process.pid}-" in str(search.error)


def test_silent_sockets_cost_one_timeout_together(job: Supervised) -> None:
    silent = []
    for number in range(20):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(job.folder / f"host-{os.getpid()}-{number + 1}.job.sock"))
        listener.listen()
        silent.append(listener)
    began_s = time.monotonic()
    assert LocalBackend(job.folder, timeout_s=1.0).find(alert("train")).name == "job train"
    assert time.monotonic() - began_s < 10
    for listener in silent:
        listener.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a socket to another user")
def test_sockets_of_one_user_do_not_hide_those_of_another(job: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hard link to a socket is another name for it, so many names cost nothing."""
    monkeypatch.setattr(local, "MAX_SUPERVISORS", 3)
    folder, own = job.folder, job.socket
    os.chown(own, 12345, -1)
    names = [folder / f"a-{os.getpid()}-{number}.job.sock" for number in range(1, 6)]
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(names[0]))
        silent.listen()
        for name in names[1:]:
            os.link(names[0], name)
        found = LocalBackend(folder)._sockets()
    assert len(found) == 4
    assert own.name in [file.name for file in found]
    for name in names:
        name.unlink()


@pytest.mark.parametrize("named", ["another", "itself"])
def test_lying_supervisor_is_not_believed(tmp_path: Path, named: str) -> None:
    """It binds a socket under another process's name, or claims to be another process."""
    lie = SupervisedJob("train", "mallory", 1, 1, 1, 0, True)
    pid = os.getpid() if named == "itself" else 1
    server = ControlServer(
        tmp_path / f"host-{pid}-1.job.sock", {"job": lambda request: {"job": encode(lie)}}, ErrorCounter()
    )
    try:
        with pytest.raises(Away, match=f"process {os.getpid()} listens there|claims to be process 1"):
            LocalBackend(tmp_path).find(alert("train"))
    finally:
        server.close()


def test_supervisor_cannot_name_the_processes_of_another_job(job: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = quick(job)
    found = backend.find(alert("train"))
    own = frozenset(found.handle.processes)
    asked: list[frozenset[int]] = []
    monkeypatch.setattr(local, "ask_folder", lambda folder, name, fields, pids, action: asked.append(pids))
    monkeypatch.setattr(backend, "_ask", lambda *_: replace(found.handle, processes=(1, os.getpid(), *own)))
    backend.ranks(found)(RankCommand("prepare", {}))
    assert asked[0]
    assert asked[0] <= own  # its short-lived children may have ended
    monkeypatch.setattr(backend, "_ask", lambda *_: replace(found.handle, processes=(1, os.getpid())))
    (reason,) = backend.ranks(found)(RankCommand("prepare", {})).silent
    assert "cannot see that its processes descend" in reason


def test_pause_file_pauses(job: Supervised, restarter: ThreadedRestarter) -> None:
    job.socket.with_suffix(".pause").touch()
    restarter.send(alert("train"))
    restarter.until("refused paused")


def test_ended_job_is_left_alone(job: Supervised, restarter: ThreadedRestarter) -> None:
    os.kill(job.process.pid, signal.SIGHUP)
    job.end()
    restarter.send(alert("train"))
    restarter.until("refused no-supervisor")


def test_record_is_compared_and_swapped(job: Supervised) -> None:
    backend = quick(job)
    found = backend.find(alert("train"))
    assert backend.remember(found, {BY: "me"}).record.by == "me"
    with pytest.raises(Conflict):
        backend.remember(found, {BY: "another"})
    with pytest.raises(NotFound):
        backend.read(replace(found, uid="1-2"))


@pytest.mark.parametrize("dry_run", [False, True])
def test_order_that_was_never_sent_is_not_sent_later(job: Supervised, tmp_path: Path, dry_run: bool) -> None:
    assert job.ask("remember", version=1, annotations={PHASE: WAITING, ORDER: "0"})["ok"]
    with restarting(tmp_path, target="process", process={"folder": "agents"}, policy={"dry_run": dry_run}) as restarter:
        restarter.until("taken-over unfinished", "ended no-effect")
    assert not job.ask("job")["job"]["annotations"]
    assert job.lines.count("ready") == 1


def test_restart_of_a_killed_restarter_is_completed(job: Supervised, tmp_path: Path) -> None:
    assert job.ask("remember", version=1, annotations={PHASE: WAITING, ORDER: "0"})["ok"]
    assert job.ask("restart", restarts=0)["ok"]
    with restarting(tmp_path, target="process", process={"folder": "agents"}) as restarter:
        restarter.until("taken-over unfinished", "restarted restarted")
    assert job.lines.count("ready") == 2
