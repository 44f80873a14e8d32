"""`gpufrag oom list` and `gpufrag oom show` as they are called."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpufrag.agent import oom_files
from gpufrag.cli import main
from gpufrag.model.fragmentation import measure
from gpufrag.wire.oom_report import Frame, OomReport, Point
from gpufrag.wire.sample import DriverReading, Identity
from helpers import golden_case_named

GIB = 1 << 30
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


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["oom", *arguments]) == 0
    return capsys.readouterr().out


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["oom", *arguments])
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return code, err


def test_a_line_a_report_the_latest_first(capsys, folder: Path) -> None:
    for number in (1, 2):
        oom_files.keep(folder, _report(number))
    head, *lines = _run(capsys, "list").splitlines()
    assert head.split()[0] == "report"
    assert [line.split()[0] for line in lines] == ["4242-2", "4242-1"]
    for word in ("2025-11-24 16:00:01", "fragmentation", "6.00 GiB", "/job/train.py:40"):
        assert word in lines[1]


def test_programs_get_what_explain_gives_them_too(capsys, folder: Path) -> None:
    report = _report()
    oom_files.keep(folder, report)
    (record,) = json.loads(_run(capsys, "list", "--json"))
    assert report.measured is not None
    assert (record["id"], record["verdict"], record["requested_bytes"]) == ("4242-1", "fragmentation", 6 * GIB)
    assert record["free_total_bytes"] == report.measured.free_total
    assert (record["evidence"], record["missing"]) == (list(report.evidence), list(report.missing))
    assert (record["next_step"], record["place"]["line"]) == ("restart", 40)


def test_an_empty_folder_is_an_empty_list(capsys, folder: Path) -> None:
    assert json.loads(_run(capsys, "list", "--json")) == []
    assert _run(capsys, "list").startswith("no report is kept")


def test_what_bears_a_reports_name_and_is_none_is_not_passed_over_in_silence(capsys, folder: Path) -> None:
    oom_files.keep(folder, _report(1))
    (report,) = folder.iterdir()
    for number in (2, 3):
        Path(str(report).replace(".oom-1.", f".oom-{number}.")).write_text("{")
    assert main(["oom", "list", "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)) == 1
    assert err.endswith(" and 1 more: not shown, for its content is no report\n")
    assert err.startswith(f"gpufrag: {folder}/node-7-4242-")


def test_another_folder_can_be_named(capsys, tmp_path: Path) -> None:
    oom_files.keep(tmp_path, _report())
    assert "4242-1" in _run(capsys, "list", "--folder", str(tmp_path))


def test_a_folder_that_is_not_there_is_told(capsys, tmp_path: Path) -> None:
    code, told = _refused(capsys, "list", "--folder", str(tmp_path / "none"))
    assert code == 1
    assert "no such folder; name the agents' with --folder" in told


def test_the_page_of_one_tells_everything(capsys, folder: Path) -> None:
    oom_files.keep(folder, _report())
    text = _run(capsys, "show", "4242-1")
    for words in (
        "out of memory: fragmentation; 6.00 GiB were asked for",
        "rank 3, device 0, pid 4242 on node-7, 2025-11-24 16:00:01 UTC, about step 120",
        "the request would fit, but no piece of it",
        "who else is there",
        "restart",
        "largest_allocatable",
        "/job/train.py:40 in forward",
        "max_split_size_mb:64",
        "7.00 GiB",
        "to copy the heap took 4.00 ms, to explain it 11.0 ms",
    ):
        assert words in text


def test_one_without_a_heap_is_told_too(capsys, folder: Path) -> None:
    oom_files.keep(folder, _report(measured=None, driver=None, stack=(), recent=(), evidence=(), alloc_conf=None))
    text = _run(capsys, "show", "4242-1")
    assert "memory at the error" not in text
    assert "unknown" not in text


def test_programs_get_the_whole_report(capsys, folder: Path) -> None:
    oom_files.keep(folder, _report())
    record = json.loads(_run(capsys, "show", "4242-1", "--json"))
    assert record["verdict"] == "fragmentation"
    assert record["report"]["recent"][0]["reserved"] == 7 * GIB


def test_two_containers_may_have_the_same_number(capsys, folder: Path) -> None:
    for host in ("a", "b"):
        oom_files.keep(folder, _report(host=host))
    code, told = _refused(capsys, "show", "4242-1")
    assert code == 2
    assert "a-4242-1000000.oom-1.json" in told
    assert "on b," in _run(capsys, "show", "b-4242-1000000.oom-1.json")


def test_an_unknown_one_is_told(capsys, folder: Path) -> None:
    code, told = _refused(capsys, "show", "5-1")
    assert (code, "see `gpufrag oom list`" in told) == (2, True)


@pytest.mark.parametrize("action", [("list",), ("show", "4242-1")])
def test_nothing_in_a_report_steers_the_terminal(capsys, folder: Path, action: tuple[str, ...]) -> None:
    frame = Frame(EVIL, 1, EVIL)
    oom_files.keep(folder, _report(cause=EVIL, evidence=(EVIL,), stack=(frame,), next_step=EVIL, alloc_conf=EVIL))
    assert "\x1b" not in _run(capsys, *action)


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "?"), ("utf-8", "–"), ("latin-1", "?")])
def test_a_terminal_without_its_characters_is_no_fault(monkeypatch, folder: Path, encoding: str, shown: str) -> None:
    oom_files.keep(folder, _report(identity=Identity("node", 4242, 1000.0)))
    terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", terminal)
    assert main(["oom", "list"]) == 0
    terminal.flush()
    assert shown in terminal.buffer.getvalue().decode(encoding).splitlines()[1].split()  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", [["oom", "list"], ["oom", "show", "1"], ["serve"], ["doctor"]])
def test_an_empty_name_is_no_folder_anywhere(command: list[str], capsys) -> None:
    assert main([*command, "--folder", ""]) == 2
    assert "an empty DIR names no folder" in capsys.readouterr().err
