"""`gpufrag run --summary`: what a job needed, printed when it has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpufrag
from fake_agents import process_sample
from gpufrag.cli import main
from gpufrag.supervisor.summary import read_samples, summarize
from gpufrag.wire.folder import FileName
from gpufrag.wire.sample import Leak, ProcessSample, encode
from helpers import TESTS
from recorded_steps import recorded_step

EXPORTER = Path(gpufrag.__file__).parents[1]
JOB = """
import os, sys, time
from dataclasses import replace
from pathlib import Path
from fake_agents import process_sample
from gpufrag.agent.identity import identify
from gpufrag.wire.folder import FileName
from gpufrag.wire.sample import encode
sample = replace(process_sample(0), identity=replace(identify(), rank=0))
Path(os.environ["GPUFRAG_DIR"], FileName.of(sample.identity).sample).write_bytes(encode(sample))
print("job is ready", flush=True)
"""


def with_device(sample: ProcessSample, **changes: Any) -> ProcessSample:
    return replace(sample, devices=(replace(sample.devices[0], **changes),))


def test_summary_has_five_lines_and_the_report(tmp_path: Path) -> None:
    one = process_sample(0)
    (tmp_path / FileName.of(one.identity).recording).write_bytes(recorded_step())
    report = tmp_path / "report.html"
    lines = summarize([one], tmp_path, report)
    assert [line.split(":")[0] for line in lines] == [
        "peak in use",
        "peak reserved",
        "smallest limit",
        "other settings",
        "out-of-memory errors",
        "report",
    ]
    assert "(rank 0, device 0)" in lines[0]
    assert "for the last recorded step; " in lines[2]
    assert "needs" in lines[3]
    assert lines[4] == "out-of-memory errors: 0; leaks: 0"
    assert report.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_summary_names_the_rank_with_the_highest_peak(tmp_path: Path) -> None:
    ranks = [process_sample(0), process_sample(1), process_sample(2)]
    peaks = [totals.peak_reserved for rank in ranks if (totals := rank.devices[0].totals)]
    lines = summarize(ranks, tmp_path, tmp_path / "report.html")
    assert f"(rank {peaks.index(max(peaks))}, " in lines[1]


def test_summary_counts_errors_and_leaks_of_all_ranks(tmp_path: Path) -> None:
    totals = process_sample(0).devices[0].totals
    assert totals is not None
    failed = replace(totals, counters=replace(totals.counters, ooms=2))
    ranks = [with_device(process_sample(rank), totals=failed, leak=Leak("step", 3 << 20)) for rank in (0, 1)]
    assert "out-of-memory errors: 4; leaks: 2 (3.00 MiB per step)" in summarize(ranks, tmp_path, tmp_path / "r.html")


def test_summary_without_recording_says_so(tmp_path: Path) -> None:
    lines = summarize([process_sample(0)], tmp_path, tmp_path / "report.html")
    assert lines[2:4] == ["smallest limit: unknown, because no step was recorded", "other settings: unknown"]
    assert lines[5].startswith("report: none, because no step was recorded")


def test_broken_recording_is_no_recording(tmp_path: Path) -> None:
    one = process_sample(0)
    (tmp_path / FileName.of(one.identity).recording).write_bytes(b"gpufrag recording\n" + b"\xff" * 50)
    assert "no step was recorded" in summarize([one], tmp_path, tmp_path / "report.html")[2]


def test_unwritable_report_is_named(tmp_path: Path) -> None:
    one = process_sample(0)
    (tmp_path / FileName.of(one.identity).recording).write_bytes(recorded_step())
    lines = summarize([one], tmp_path, tmp_path / "missing" / "report.html")
    assert lines[-1] == f"report: cannot write {tmp_path}/missing/report.html: No such file or directory"


def test_job_without_gpu_has_one_line(tmp_path: Path) -> None:
    assert summarize([], tmp_path, tmp_path / "r.html") == [
        "no process of the job used a GPU through a supported framework"
    ]


def test_only_processes_of_the_job_are_read(tmp_path: Path) -> None:
    own, other, earlier = (process_sample(0, pid=pid, start=start) for pid, start in ((7, 50), (8, 50), (9, 5)))
    for one in (own, other, earlier):
        (tmp_path / FileName.of(one.identity).sample).write_bytes(encode(one))
    (tmp_path / "host-10-50000.json").write_text("not a sample")
    assert read_samples(tmp_path, {7, 9, 10}, begin=40.0) == [own]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """start(code, ...) -> `gpufrag run --summary -- python -c code`, in an empty working directory."""
    started = []

    def begin(code: str) -> subprocess.Popen[str]:
        (tmp_path / "agents").mkdir()
        (tmp_path / "work").mkdir()
        path = os.pathsep.join([str(EXPORTER), str(TESTS)])
        environment = {**os.environ, "PYTHONPATH": path, "GPUFRAG_DIR": str(tmp_path / "agents")}
        command = [sys.executable, "-m", "gpufrag", "run", "--summary", "--", sys.executable, "-c", code]
        process = subprocess.Popen(
            command, env=environment, cwd=tmp_path / "work", text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_summary_follows_the_job_and_keeps_its_exit_code(start: Any) -> None:
    process = start(JOB + "sys.exit(7)")
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (7, "job is ready\n")
    lines = err.splitlines()
    assert [line.split(":")[:2] for line in lines[:2]] == [["gpufrag", " peak in use"], ["gpufrag", " peak reserved"]]
    assert len(lines) == 6


def test_signal_reaches_the_job_and_the_summary_follows(start: Any) -> None:
    process = start(JOB + "time.sleep(60)")
    assert process.stdout.readline() == "job is ready\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGTERM
    assert "gpufrag: peak reserved: " in err


def test_summary_and_restartable_cannot_be_combined(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--summary", "--restartable", "--", "true"]) == 2
    assert "--summary and --restartable cannot be combined" in capsys.readouterr().err


ENDLESS = """
import os, sys
from pathlib import Path
from gpufrag.supervisor import summary
from gpufrag.supervisor.command import end_as
def endless(*arguments):
    while True:
        pass
summary.summarize, summary.LONGEST_S = endless, 0.2
folder = Path(sys.argv[1])
sys.exit(end_as(summary.run_with_summary(["sh", "-c", "exit 7"], os.environ, folder, folder / "report.html")))
"""


def test_endless_summary_does_not_keep_the_exit_code(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDLESS, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(EXPORTER)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (7, "")
    assert "no summary: Unavailable: it takes longer than 0.2 s" in done.stderr
