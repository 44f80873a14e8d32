"""Jobs of this host as a backend: from an alert to a restarted job, and what forbids a restart."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from dataclasses import replace

import pytest

from gpufrag.checkpoint.protocol import RankCommand
from gpufrag.restarter.backend import Away, Conflict, NotFound, Search
from gpufrag.restarter.local import backend as local
from gpufrag.restarter.local.backend import LocalBackend
from gpufrag.restarter.record import BY, ORDER, PHASE, WAITING
from gpufrag.wire.control_server import ControlServer
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.supervised_job import SupervisedJob, encode
from restarter.threaded_rig import restarting
from restarter.worker_rig import job_alert
from supervisor.supervised_process import Supervised, eventually

JOB = "echo count $GPUFRAG_RESTART_COUNT >> $LOG; echo ready >> $LOG; while :; do sleep 0.1; done"


@pytest.fixture
def start(tmp_path):
    """Start a job; all of them share a folder."""
    started = []

    def run(name="train"):
        folder = tmp_path / f"job-{len(started)}" if started else tmp_path
        folder.mkdir(exist_ok=True)
        if started:
            (folder / "agents").symlink_to(tmp_path / "agents")
        started.append(Supervised(folder, "--name", name, "--", "sh", "-c", JOB))
        started[-1].until("ready")
        eventually(lambda: record_of(started[-1]))
        return started[-1]

    yield run
    for job in started:
        job.close()


def record_of(job):
    """Return the paths of its record: one, once it is written."""
    return list(job.folder.glob(f"*-{job.process.pid}-*.job.json"))


@pytest.fixture
def job(start):
    return start()


@pytest.fixture
def restarter(tmp_path):
    with restarting(tmp_path) as one:
        yield one


@pytest.fixture
def backend(job):
    return LocalBackend(job.folder, timeout_s=0.2)


def test_alert_restarts_its_job_once(job, restarter, tmp_path):
    restarter.send("train", "train")
    restarter.until("started started", "restarted restarted")
    assert [line for line in job.lines if line.startswith("count")] == ["count 0", "count 1"]
    assert job.job.annotations["gpufrag.dev/restart-count"] == "1"
    assert PHASE not in job.job.annotations
    with restarting(tmp_path) as another:
        another.send("train")
        another.until("refused cooldown")


def test_dry_run_changes_nothing(job, tmp_path):
    with restarting(tmp_path, policy={}) as restarter:
        restarter.send("train")
        restarter.until("would-restart dry-run")
    assert (job.job.version, job.job.restarts) == (1, 0)


@pytest.mark.parametrize("name", ["other", "", "../train"])
def test_alert_about_an_unknown_job_is_refused(job, restarter, name):
    restarter.send(name)
    restarter.until("refused no-supervisor")


def test_two_jobs_of_one_name_are_refused(job, start, restarter):
    start()
    restarter.send("train")
    restarter.until("refused ambiguous-name")


@pytest.fixture
def stopped(job, start):
    """Another job, whose supervisor is stopped."""
    one = start("stopped")
    os.kill(one.process.pid, signal.SIGSTOP)
    yield one
    os.kill(one.process.pid, signal.SIGCONT)


def test_stopped_supervisor_delays_no_other_job(backend, stopped):
    assert backend.find(job_alert("train")).name == "job train"
    assert backend.unfinished() == Search([])
    with pytest.raises(Away, match="no usable answer"):
        backend.find(job_alert("stopped"))


@pytest.mark.parametrize("torn", [False, True])
def test_stopped_supervisor_in_a_restart_makes_the_search_incomplete(backend, stopped, torn):
    (record,) = record_of(stopped)
    marked = {**json.loads(record.read_text()), "annotations": {PHASE: WAITING}}
    record.write_text("{" if torn else json.dumps(marked))
    search = backend.unfinished()
    assert (search.jobs, type(search.error)) == ([], Away)
    assert f"-{stopped.process.pid}-" in str(search.error)


def test_silent_sockets_cost_one_timeout_together(job):
    silent = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for number, listener in enumerate(silent):
        listener.bind(str(job.folder / f"host-{os.getpid()}-{number + 1}.job.sock"))
        listener.listen()
    began_s = time.monotonic()
    assert LocalBackend(job.folder, timeout_s=1.0).find(job_alert("train")).name == "job train"
    assert time.monotonic() - began_s < 10
    for listener in silent:
        listener.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a socket to another user")
def test_sockets_of_one_user_do_not_hide_those_of_another(job, monkeypatch):
    """A hard link to a socket is another name for it, so many names cost nothing."""
    monkeypatch.setattr(local, "MAX_SUPERVISORS", 3)
    own = job.socket
    os.chown(own, 12345, -1)
    names = [job.folder / f"a-{os.getpid()}-{number}.job.sock" for number in range(1, 6)]
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(names[0]))
        silent.listen()
        for name in names[1:]:
            os.link(names[0], name)
        found = LocalBackend(job.folder)._sockets()
    assert len(found) == 4
    assert own.name in [file.name for file in found]
    for name in names:
        name.unlink()


@pytest.mark.parametrize("pid", [1, os.getpid()], ids=["another process", "itself"])
def test_lying_supervisor_is_not_believed(tmp_path, pid):
    """It binds a socket under another process's name, or claims to be another process."""
    lie = {"job": encode(SupervisedJob("train", "mallory", 1, 1, 1, 0, True))}
    server = ControlServer(tmp_path / f"host-{pid}-1.job.sock", {"job": lambda request: lie}, ErrorCounter())
    try:
        with pytest.raises(Away, match=f"process {os.getpid()} listens there|claims to be process 1"):
            LocalBackend(tmp_path).find(job_alert("train"))
    finally:
        server.close()


def test_supervisor_cannot_name_the_processes_of_another_job(backend, monkeypatch):
    found = backend.find(job_alert("train"))
    own, asked = frozenset(found.handle.processes), []
    monkeypatch.setattr(local, "ask_folder", lambda folder, name, fields, pids, action: asked.append(pids))
    monkeypatch.setattr(backend, "_ask", lambda *_: replace(found.handle, processes=(1, os.getpid(), *own)))
    backend.ranks(found)(RankCommand("prepare", {}))
    assert asked[0]
    assert asked[0] <= own  # its short-lived children may have ended
    monkeypatch.setattr(backend, "_ask", lambda *_: replace(found.handle, processes=(1, os.getpid())))
    (reason,) = backend.ranks(found)(RankCommand("prepare", {})).silent
    assert "cannot see that its processes descend" in reason


def test_pause_file_pauses(job, restarter):
    job.socket.with_suffix(".pause").touch()
    restarter.send("train")
    restarter.until("refused paused")


def test_ended_job_is_left_alone(job, restarter):
    os.kill(job.process.pid, signal.SIGHUP)
    job.end()
    restarter.send("train")
    restarter.until("refused no-supervisor")


def test_record_is_compared_and_swapped(backend):
    found = backend.find(job_alert("train"))
    assert backend.remember(found, {BY: "me"}).record.by == "me"
    with pytest.raises(Conflict):
        backend.remember(found, {BY: "another"})
    with pytest.raises(NotFound):
        backend.read(replace(found, uid="1-2"))


@pytest.mark.parametrize(
    ("sent", "dry_run", "outcome", "starts"),
    [
        (True, False, "restarted restarted", 2),
        (False, False, "ended no-effect", 1),
        (False, True, "ended no-effect", 1),
    ],
)
def test_restart_of_a_killed_restarter_is_completed(job, tmp_path, sent, dry_run, outcome, starts):
    """An order that was never sent is not sent later."""
    assert job.ask("remember", version=1, annotations={PHASE: WAITING, ORDER: "0"})["ok"]
    if sent:
        assert job.ask("restart", restarts=0)["ok"]
    with restarting(tmp_path, policy={"dry_run": dry_run}) as restarter:
        restarter.until("taken-over unfinished", outcome)
    assert not job.job.annotations
    assert job.lines.count("ready") == starts
