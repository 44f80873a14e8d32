"""A job is stopped for a restart only if it can be started again; a failed start is retried."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufrag.supervisor.command import restart_obstacle
from supervisor.supervised_process import eventually

SCRIPT = """#!/bin/sh
trap '{at_term}; exit 3' TERM
echo ready >> $LOG
while :; do sleep 0.1; done
"""


@pytest.fixture
def script(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "program"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o700)
        return path

    return write


def test_executable_command_has_no_obstacle(script):
    path = script("#!/bin/sh -e\n")
    assert restart_obstacle(str(path), {}) is None
    assert restart_obstacle("program", {"PATH": f"/nowhere:{path.parent}"}) is None
    assert restart_obstacle("sh", {}) is None  # by the path that the system has where there is none


def test_missing_command_is_an_obstacle(script):
    path = script("")
    path.chmod(0o600)
    assert restart_obstacle(str(path), {}) == f"'{path}' no longer exists or is not executable; restore it"
    assert "'program' no longer exists" in str(restart_obstacle("program", {"PATH": "/nowhere"}))


def test_missing_interpreter_is_an_obstacle(script):
    path = script("#!/venv/that/was/replaced/python -u\n")
    assert f"'/venv/that/was/replaced/python', the interpreter of '{path}'" in str(restart_obstacle(str(path), {}))


@pytest.mark.parametrize("dry_run", [True, False])
def test_job_whose_program_is_gone_keeps_running(started, script, dry_run):
    path = script(SCRIPT.format(at_term="echo received >> $LOG"))
    it = started("--name", "train", "--", str(path))
    path.unlink()
    answer = it.ask("restart", restarts=0, dry_run=dry_run)
    assert answer["error"].startswith(
        f"train could not be started again, so it keeps running: '{path}' no longer exists"
    )
    assert (it.job.running, it.lines) == (True, ["ready"])


def test_failed_start_is_retried(started, script):
    path = script(SCRIPT.format(at_term="mv $0 $0.away"))
    it = started("--name", "train", "--", str(path))
    assert it.ask("restart", restarts=0)["ok"]
    eventually(lambda: "cannot start train again: No such file or directory; retrying" in it.stderr)
    assert (it.job.running, it.job.restarts) == (False, 0)
    path.with_name("program.away").rename(path)
    it.until("ready", 2)
    assert (it.job.running, it.job.restarts, it.stderr.count("retrying")) == (True, 1, 1)


def test_signal_ends_the_retries(started, script):
    it = started("--", str(script(SCRIPT.format(at_term="rm $0"))))
    assert it.ask("restart", restarts=0)["ok"]
    eventually(lambda: "again: No such file or directory; retrying" in it.stderr)
    it.process.terminate()
    assert (it.end(), it.lines) == (3, ["ready"])
