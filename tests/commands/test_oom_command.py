"""`gpufrag oom list`, `show` and `explain`: text, JSON, exit codes."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpufrag.agent.agent import keep_report
from gpufrag.cli import main
from gpufrag.model.fragmentation import measure
from gpufrag.wire.oom_report import Frame, OomReport, Point
from gpufrag.wire.sample import DriverReading, Identity, Snapshot
from helpers import SNAPSHOTS, TESTS, golden_case_named

GIB = 1 << 30
LOG = TESTS / "oom_log" / "fixtures" / "torch-ranks.log"
EVIL = "\x1b[31m\nforged"


def _report(number: int = 1, host: str = "node-7", **changes: object) -> OomReport:
    case = golden_case_named("train-cap4")
    report = OomReport(
        identity=Identity(host, 4242, 1000.0, rank=3),
        number=number,
        time=1_764_000_000.0 + number,
        device=0,
        requested=6 * GIB,
        cause="fragmentation",
        evidence=("the request would fit, but no piece of it",),
        missing=("who else is there",),
        next_step="restart",
        measured=measure(case.heap, case.driver),
        driver=DriverReading(1.0, 5 * GIB, 140 * GIB),
        alloc_conf="max_split_size_mb:64",
        steps=120,
        stack=(Frame("/job/train.py", 40, "forward"),),
        recent=(Point(1_763_999_999.0, 7 * GIB, 6 * GIB, 6 * GIB, None),),
        snapshot_seconds=0.004,
        explain_seconds=0.011,
    )
    return replace(report, **changes)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUFRAG_DIR", str(tmp_path))
    return tmp_path


def test_report_shows_the_peak_of_the_last_recorded_step(cli, folder: Path) -> None:
    case = golden_case_named("train-cap4")
    peak = Snapshot(1_763_999_981.0, "peak", 0.005, measure(case.heap, case.driver))
    keep_report(folder, _report(last_peak=peak))
    shown = cli.text("oom", "show", _report().id)
    assert "memory at the peak of the last recorded step, 20.0 s before the error" in shown
    assert shown.count("largest_allocatable") == 2, "at the error and at the peak"


def test_list_has_a_line_per_report_newest_first(cli, folder: Path) -> None:
    for number in (1, 2):
        keep_report(folder, _report(number))
    head, *lines = cli.text("oom", "list").splitlines()
    assert head.split()[0] == "report"
    assert [line.split()[0] for line in lines] == ["4242-2", "4242-1"]
    for word in ("2025-11-24 16:00:01", "fragmentation", "6.00 GiB", "/job/train.py:40"):
        assert word in lines[1]


def test_list_json_has_the_keys_of_explain(cli, folder: Path) -> None:
    report = _report()
    keep_report(folder, report)
    (record,) = cli.json("oom", "list")
    assert report.measured is not None
    assert (record["id"], record["verdict"], record["requested_bytes"]) == ("4242-1", "fragmentation", 6 * GIB)
    assert record["free_total_bytes"] == report.measured.free_total
    assert (record["evidence"], record["missing"]) == (list(report.evidence), list(report.missing))
    assert (record["next_step"], record["place"]["line"]) == ("restart", 40)


def test_list_of_empty_folder_is_empty(cli, folder: Path) -> None:
    assert cli.json("oom", "list") == []
    assert cli.text("oom", "list").startswith("No recent out-of-memory errors.")


def test_list_names_skipped_files(cli, folder: Path) -> None:
    keep_report(folder, _report(1))
    (report,) = folder.iterdir()
    for number in (2, 3):
        Path(str(report).replace(".oom-1.", f".oom-{number}.")).write_text("{")
    code, out, err = cli.run("oom", "list", "--json")
    assert (code, len(json.loads(out))) == (0, 1)
    assert err.endswith(" and 1 more: its content is not a report\n")
    assert err.startswith(f"gpufrag: skipped {folder}/node-7-4242-")


def test_list_reads_named_folder(cli, tmp_path: Path) -> None:
    keep_report(tmp_path, _report())
    assert "4242-1" in cli.text("oom", "list", "--folder", tmp_path)


def test_list_without_folder_fails(cli, tmp_path: Path) -> None:
    code, error = cli.refusal("oom", "list", "--folder", tmp_path / "none")
    assert (code, "no such folder (the first agent creates it)" in error) == (1, True)


def test_show_prints_everything(cli, folder: Path) -> None:
    keep_report(folder, _report())
    text = cli.text("oom", "show", "4242-1")
    for words in (
        "out of memory: fragmentation; 6.00 GiB requested",
        "rank 3, device 0, pid 4242 on node-7, 2025-11-24 16:00:01 UTC, about step 120",
        "the request would fit, but no piece of it",
        "who else is there",
        "restart",
        "largest_allocatable",
        "/job/train.py:40 in forward",
        "max_split_size_mb:64",
        "7.00 GiB",
        "the snapshot took 4.00 ms, the explanation 11.0 ms",
    ):
        assert words in text


def test_show_without_heap_leaves_out_figures(cli, folder: Path) -> None:
    keep_report(folder, _report(measured=None, driver=None, stack=(), recent=(), evidence=(), alloc_conf=None))
    text = cli.text("oom", "show", "4242-1")
    assert "memory at the error" not in text
    assert "unknown" not in text


def test_show_json_has_the_whole_report(cli, folder: Path) -> None:
    keep_report(folder, _report())
    record = cli.json("oom", "show", "4242-1")
    assert record["verdict"] == "fragmentation"
    assert record["report"]["recent"][0]["reserved"] == 7 * GIB


def test_show_with_ambiguous_id_names_the_files(cli, folder: Path) -> None:
    for host in ("a", "b"):
        keep_report(folder, _report(host=host))
    code, error = cli.refusal("oom", "show", "4242-1")
    assert (code, "a-4242-1000000.oom-1.json" in error) == (2, True)
    assert "on b," in cli.text("oom", "show", "b-4242-1000000.oom-1.json")


def test_show_with_unknown_id_fails(cli, folder: Path) -> None:
    code, error = cli.refusal("oom", "show", "5-1")
    assert (code, "list the reports with `gpufrag oom list`" in error) == (2, True)


@pytest.mark.parametrize("action", [("list",), ("show", "4242-1")])
def test_report_text_has_no_control_characters(cli, folder: Path, action: tuple[str, ...]) -> None:
    frame = Frame(EVIL, 1, EVIL)
    keep_report(folder, _report(cause=EVIL, evidence=(EVIL,), stack=(frame,), next_step=EVIL, alloc_conf=EVIL))
    assert "\x1b" not in cli.text("oom", *action)


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "?"), ("utf-8", "–"), ("latin-1", "?")])
def test_list_on_terminal_without_utf8_works(monkeypatch, folder: Path, encoding: str, shown: str) -> None:
    keep_report(folder, _report(identity=Identity("node", 4242, 1000.0)))
    terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", terminal)
    assert main(["oom", "list"]) == 0
    terminal.flush()
    assert shown in terminal.buffer.getvalue().decode(encoding).splitlines()[1].split()  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", [["oom", "list"], ["oom", "show", "1"], ["serve"], ["doctor"]])
def test_empty_folder_name_is_refused(cli, command: list[str]) -> None:
    code, _, err = cli.run(*command, "--folder", "")
    assert code == 2
    assert re.search("(DIR|path) is empty|an empty path", err)


def test_explain_json_has_an_object_per_error(cli) -> None:
    first, second = cli.json("oom", "explain", LOG)
    assert (first["verdict"], first["requested_bytes"], first["line"]) == ("fragmentation", 3 << 29, 6)
    assert first["free_total_bytes"] == (13 << 29) + (5 << 28)
    assert (second["line"], second["device"]) == (13, 3)
    assert all(first[name] for name in ("evidence", "missing", "next_step"))


def test_explain_undecided_totals_are_unknown(cli) -> None:
    (found,) = cli.json("oom", "explain", LOG.with_name("cudamallocasync.log"))
    assert (found["verdict"], found["device"], found["free_total_bytes"]) == ("unknown", 5, None)
    assert found["missing"] == ["how much of that the allocator has cached"]


def test_explain_log_without_errors_is_empty(cli, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("all is well\n")
    assert cli.json("oom", "explain", tmp_path / "log") == []
    assert "No out-of-memory errors" in cli.text("oom", "explain", tmp_path / "log")


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (SNAPSHOTS / "default-1.pickle.gz", "is a memory snapshot, not a log; use `gpufrag explain "),
        (sys.executable, "is a binary file, not a log"),
    ],
    ids=["snapshot", "binary"],
)
def test_explain_refuses_what_is_no_log(cli, file: object, what: str) -> None:
    code, error = cli.refusal("oom", "explain", file)
    assert (code, what in error) == (1, True), error


def test_explain_names_mpirun_ranks(cli) -> None:
    text = cli.text("oom", "explain", LOG.with_name("rank-marks-mpirun-timestamp.log"))
    assert "(line 2, rank 1, GPU 0, torch)" in text


def test_explain_text_has_verdict_and_advice(cli) -> None:
    text = cli.text("oom", "explain", LOG)
    assert "FRAGMENTATION  (line 6, GPU 0, torch)" in text
    assert "7.75 GiB was free in total, enough for 1.50 GiB, but in no single piece" in text
    assert "expandable_segments:True" in text


def test_explain_lists_doubts_about_the_text_first(cli, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00MiB (rounded to 1048576)\n"
    )
    (found,) = cli.json("oom", "explain", tmp_path / "log")
    assert "dump" in found["missing"][0]


def test_explain_json_is_closed_before_an_error(cli, tmp_path: Path) -> None:
    whole = gzip.compress(LOG.read_bytes() + b"x" * 10_000)
    (tmp_path / "log.gz").write_bytes(whole[:-9])
    code, out, err = cli.run("oom", "explain", tmp_path / "log.gz", "--json")
    assert isinstance(json.loads(out), list)
    assert (code, "cut off" in err) == (1, True)


def test_explain_missing_file_prints_no_json(cli) -> None:
    code, error = cli.refusal("oom", "explain", "nowhere.log", "--json")
    assert (code, "nowhere.log: no such file" in error) == (1, True)
