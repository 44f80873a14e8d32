"""A job under `gpufrag run --restartable`: restarted on order, otherwise undisturbed."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from supervisor.supervised_process import READY, alive, eventually, job, pids, state

SHELL_WITH_A_CHILD = """
trap '' TERM
setsid sh -c 'trap "" TERM; echo pid $$ >> $LOG; echo child >> $LOG; while :; do sleep 1; done' &
echo pid $$ >> $LOG
echo ready >> $LOG
while :; do sleep 1; done
"""


def test_restart_runs_the_command_with_its_count(started):
    it = started("--name", "train", *job())
    assert (it.job.name, it.job.restarts, it.job.running, it.job.annotations) == ("train", 0, True, {})
    it.restart()
    assert [line for line in it.lines if line.startswith(("count", "SIG"))] == ["count 0", "SIGTERM", "count 1"]
    first, second = pids(it.lines)
    assert not alive(first)
    assert alive(second)
    assert it.job.restarts == 1
    assert "restart 1 of train" in it.stderr


def test_concurrent_orders_restart_once(started):
    it = started(*job())
    assert it.socket.stat().st_mode & 0o777 == 0o600
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: it.ask("restart", restarts=0), range(8)))
    assert sorted("refused" in answer for answer in answers) == [False, *[True] * 7]
    it.until("ready", 2)
    assert it.ask("restart", restarts=0) == {"ok": True, "refused": "conflict"}
    assert it.lines.count("ready") == 2


def test_dry_run_changes_nothing(started):
    it = started(*job())
    assert it.ask("restart", restarts=0, dry_run=True)["job"]["restarts"] == 0
    assert it.ask("remember", version=1, annotations={"a": "b"}, dry_run=True)["job"]["annotations"] == {"a": "b"}
    assert (it.job.version, it.job.annotations, it.lines.count("SIGTERM")) == (1, {}, 0)


def test_annotations_require_the_current_version(started):
    it = started(*job())
    assert it.ask("remember", version=1, annotations={"a": "b", "c": "d"})["job"]["version"] == 2
    assert it.ask("remember", version=1, annotations={"a": "z"}) == {"ok": True, "refused": "conflict"}
    assert it.ask("remember", version=2, annotations={"a": None})["job"]["annotations"] == {"c": "d"}
    assert '"c": "d"' in it.socket.with_suffix(".json").read_text(encoding="utf-8")
    assert it.ask("remember", version=3, annotations={"a": 7})["ok"] is False


def test_pause_file_is_reported(started):
    it = started(*job())
    it.socket.with_suffix(".pause").touch()
    assert it.job.paused


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_are_passed_on_once(started, number):
    it = started(*job())
    it.process.send_signal(number)
    it.until(number.name)
    it.process.terminate()
    assert it.end() == 3
    assert [line for line in it.lines if line.startswith("SIG")] == [number.name, "SIGTERM"]


def test_job_ended_by_user_is_not_restarted(started):
    it = started(*job())
    it.process.send_signal(signal.SIGINT)  # which it survives
    it.until("SIGINT")
    assert "is ending and is not started again" in it.ask("restart", restarts=0)["error"]


@pytest.mark.parametrize("words", [["sh", "-c", "exit 7"], [sys.executable, "-c", "raise SystemExit(7)"]])
def test_exit_code_is_the_jobs(start, words):
    it = start("--", *words)
    assert (it.end(), it.stderr, list(it.folder.iterdir())) == (7, "", [])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1, signal.SIGINT])
def test_job_ended_by_a_signal_ends_the_same_way(start, number):
    it = start("--", "sh", "-c", f"kill -{number:d} $$")
    assert it.end() == -number  # which a shell shows as 128 + n
    assert list(it.folder.iterdir()) == []


def test_job_finished_during_a_restart_stays_ended(started):
    it = started(*job(code=0))
    assert it.ask("restart", restarts=0)["ok"]
    assert it.end() == 0
    assert it.lines.count("ready") == 1


def test_job_ended_during_a_restart_stays_ended(started):
    it = started(
        "--grace",
        "20s",
        "--",
        "sh",
        "-c",
        "trap 'echo received >> $LOG' TERM; trap 'exit 5' INT; " + READY,
    )
    assert it.ask("restart", restarts=0)["ok"]
    it.until("received")
    it.process.send_signal(signal.SIGINT)
    assert (it.end(), it.lines.count("ready")) == (5, 1)


def test_processes_of_all_sessions_are_killed_after_the_grace(started):
    it = started("--grace", "300ms", "--", "sh", "-c", SHELL_WITH_A_CHILD)
    it.until("child")
    before = pids(it.lines)
    assert it.ask("restart", restarts=0)["ok"]
    it.until("child", 2)
    assert [alive(pid) for pid in before] == [False, False]
    assert "did not end within 0.3 s of SIGTERM; sending SIGKILL" in it.stderr
    it.process.kill()
    it.process.wait()
    for pid in pids(it.lines)[2:]:
        os.kill(pid, signal.SIGKILL)  # they ignore SIGTERM


def test_killed_supervisor_leaves_no_job(start, started):
    it = started(*job())
    it.process.kill()
    it.process.wait()
    eventually(lambda: not alive(pids(it.lines)[0]))
    assert it.lines[-1] == "SIGTERM"
    assert len(list(it.folder.iterdir())) == 2
    other = start("--", "true")
    assert other.end() == 0
    assert list(it.folder.iterdir()) == []


def test_stop_and_continue_reach_the_job(started):
    it = started(*job())
    (pid,) = pids(it.lines)
    it.process.send_signal(signal.SIGTSTP)
    eventually(lambda: state(pid) == "T" and state(it.process.pid) == "T")
    it.process.send_signal(signal.SIGCONT)
    eventually(lambda: state(pid) != "T" and state(it.process.pid) != "T")
    it.process.terminate()
    assert it.end() == 3


def test_failed_first_start_is_one_line(start):
    it = start("--", "/")
    assert it.end() == 1
    assert it.stderr == "gpufrag: cannot run '/': Permission denied; give an executable program\n"
