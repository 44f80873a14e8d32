"""A job is stopped for a restart only while there is something to start, and what then fails is tried again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpufrag.supervisor.program import obstacle
from supervisor.supervised_process import eventually

SCRIPT = """#!/bin/sh
trap '{at_term}; exit 3' TERM
echo ready >> $LOG
while :; do sleep 0.1; done
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "program"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o700)
        return path

    return write


def test_what_can_be_started_has_no_obstacle(script: Any) -> None:
    path = script("#!/bin/sh -e\n")
    assert obstacle(str(path), {}) is None
    assert obstacle("program", {"PATH": f"/nowhere:{path.parent}"}) is None
    assert obstacle("sh", {}) is None  # by the path that the system has where there is none


def test_what_is_gone_is_named(script: Any) -> None:
    path = script("")
    path.chmod(0o600)
    assert obstacle(str(path), {}) == f"'{path}' is gone, or may not be executed; put it back"
    assert "'program' is gone" in str(obstacle("program", {"PATH": "/nowhere"}))


def test_a_script_needs_its_interpreter(script: Any) -> None:
    path = script("#!/venv/that/was/replaced/python -u\n")
    assert f"'/venv/that/was/replaced/python', the interpreter of '{path}'" in str(obstacle(str(path), {}))


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_job_whose_program_is_gone_runs_on(start: Any, script: Any, dry_run: bool) -> None:
    path = script(SCRIPT.format(at_term="echo told >> $LOG"))
    it = start("--name", "train", "--", str(path))
    it.until("ready")
    path.unlink()
    answer = it.ask("restart", restarts=0, dry_run=dry_run)
    assert answer["error"].startswith(f"train could not be started again, and runs on: '{path}' is gone")
    assert (it.job.running, it.lines) == (True, ["ready"])


def test_a_start_that_fails_after_the_stop_is_tried_again(start: Any, script: Any) -> None:
    path = script(SCRIPT.format(at_term="mv $0 $0.away"))
    it = start("--name", "train", "--", str(path))
    it.until("ready")
    assert it.ask("restart", restarts=0)["ok"]
    eventually(lambda: "train cannot be started again yet (No such file or directory)" in it.told)
    assert (it.job.running, it.job.restarts) == (False, 0)
    path.with_name("program.away").rename(path)
    it.until("ready", 2)
    assert (it.job.running, it.job.restarts, it.told.count("yet")) == (True, 1, 1)


def test_who_ends_the_job_meanwhile_need_not_wait(start: Any, script: Any) -> None:
    it = start("--", str(script(SCRIPT.format(at_term="rm $0"))))
    it.until("ready")
    assert it.ask("restart", restarts=0)["ok"]
    eventually(lambda: "cannot be started again yet" in it.told)
    it.process.terminate()
    assert (it.end(), it.lines) == (3, ["ready"])
