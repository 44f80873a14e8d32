"""On a real Slurm: an alert makes the restarter signal the job and requeue it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from e2e import slurm_cluster
from e2e.slurm_cluster import Slurm
from restarter.restarter_process import Process, write_config

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=f"not installed: {', '.join(slurm_cluster.missing())}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd needs root to start jobs of other users"),
]
COMMENT = "gpufrag.dev/restart=true gpufrag.dev/signal=B:USR1"
JOB = """#!/bin/bash
save() {
    echo "$1" >> $LOG
    scontrol update JobId=$SLURM_JOB_ID Comment="$COMMENT gpufrag.dev/saved=17"
}
trap 'save USR1' USR1
trap 'echo TERM >> $LOG; exit 3' TERM
echo "run ${SLURM_RESTART_COUNT:-0}" >> $LOG
while :; do sleep 0.1; done
"""


@pytest.fixture
def slurm():
    with tempfile.TemporaryDirectory(prefix="gpufrag-slurm-") as folder:
        os.chmod(folder, 0o755)  # munge trusts no other
        with slurm_cluster.running(Path(folder)) as one:
            yield one


@pytest.fixture
def restarter(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    config = write_config(
        tmp_path, target="slurm", state_file="state.json", policy={"dry_run": False}, slurm={"start_after": "3s"}
    )
    process = Process(tmp_path, "--config", str(config))
    process.wait_until_it_listens()
    yield process
    process.kill()


def submit(slurm: Slurm, *flags: str, job: str = JOB) -> str:
    script = slurm.folder / "train.sh"
    script.write_text(job)
    words = ["sbatch", "--parsable", "--job-name=train", f"--comment={COMMENT}", "--output=/dev/null", *flags]
    return slurm.command(*words, f"--export=ALL,LOG={log(slurm)},COMMENT={COMMENT}", str(script))


def log(slurm: Slurm) -> Path:
    return slurm.folder / "job.out"


def lines(slurm: Slurm) -> list[str]:
    return log(slurm).read_text().splitlines() if log(slurm).exists() else []


def test_alert_requeues_its_job(slurm, restarter, tmp_path):
    number = submit(slurm, "--requeue")
    slurm.until(lambda: lines(slurm) == ["run 0"])
    restarter.send(job_name=f"train-{number}")
    slurm.until(lambda: lines(slurm) == ["run 0", "USR1", "TERM", "run 1"])
    slurm.until(lambda: restarter.outcomes == ["started", "restarted"])
    started = restarter.get("/v1/decisions").json()[1]
    assert "The job reports that it saved (17)." in started["text"]
    assert remembered(tmp_path, number)["gpufrag.dev/restart-count"] == "1"
    restarter.send(job_name=f"train-{number}")
    slurm.until(lambda: restarter.outcomes == ["started", "restarted", "refused"])
    assert restarter.get("/v1/decisions").json()[0]["reason"] == "cooldown"


def remembered(folder: Path, number: str) -> dict[str, Any]:
    state = json.loads((folder / "state.json").read_text())
    (entry,) = [entry for key, entry in state.items() if key == f"slurm/{number}"]
    annotations: dict[str, Any] = entry["annotations"]
    return annotations


def test_job_without_requeue_is_left_alone(slurm, restarter):
    number = submit(slurm, "--no-requeue")
    slurm.until(lambda: lines(slurm) == ["run 0"])
    restarter.send(job_name=f"train-{number}")
    slurm.until(lambda: restarter.outcomes == ["refused"])
    assert restarter.get("/v1/decisions").json()[0]["reason"] == "no-requeue"
    assert lines(slurm) == ["run 0"]


@pytest.mark.parametrize("how", ["exit 42", ":", "exit 0"])
def test_job_that_ends_on_the_signal(slurm, restarter, how):
    """With the exit code of ranks that saved, by the signal itself, or completely."""
    handler = "" if how == ":" else f"trap '{how}' USR1"
    number = submit(slurm, "--requeue", job=JOB.replace("trap 'save USR1' USR1", handler))
    slurm.until(lambda: lines(slurm) == ["run 0"])
    restarter.send(job_name=f"train-{number}")
    if how == "exit 0":
        slurm.until(lambda: restarter.outcomes == ["started", "refused"])
        assert lines(slurm) == ["run 0"]
    else:
        slurm.until(lambda: lines(slurm) == ["run 0", "run 1"])
        slurm.until(lambda: restarter.outcomes == ["started", "restarted"])


def test_one_task_of_an_array_is_requeued(slurm, restarter):
    ends = "\n[ $SLURM_ARRAY_TASK_ID = 1 ] || exit 0\nwhile"
    number = submit(slurm, "--requeue", "--array=0-1", job=JOB.replace("\nwhile", ends).replace("$COMMENT", COMMENT))
    slurm.until(lambda: lines(slurm) == ["run 0", "run 0"])
    restarter.send(job_name=number)
    slurm.until(lambda: restarter.outcomes == ["refused"])
    restarter.send(job_name=f"train-{number}")
    slurm.until(lambda: restarter.outcomes == ["refused", "started", "restarted"])
    slurm.until(lambda: lines(slurm)[2:] == ["USR1", "TERM", "run 1"])
    counts = slurm.command(
        "squeue", "--noheader", "--states=all", f"--jobs={number}", "--Format=ArrayTaskID:4,RestartCnt:4"
    )
    assert {tuple(line.split()) for line in counts.splitlines()} == {("0", "0"), ("1", "1")}
