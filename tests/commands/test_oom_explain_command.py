"""`gpufrag oom explain` as it is called: text, JSON, nothing found, what it refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gpufrag.cli import main
from helpers import TESTS

LOG = str(TESTS / "oom_log" / "fixtures" / "torch-ranks.log")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["oom", "explain", *arguments]) == 0
    return capsys.readouterr().out


def test_the_list_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = json.loads(printed(capsys, LOG, "--json"))
    assert (first["verdict"], first["requested_bytes"], first["line"]) == ("fragmentation", 3 << 29, 6)
    assert first["free_total_bytes"] == (13 << 29) + (5 << 28)
    assert (second["line"], second["device"]) == (13, 3)
    assert all(first[name] for name in ("evidence", "missing", "next_step"))


def test_totals_that_do_not_decide(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = json.loads(printed(capsys, str(Path(LOG).with_name("cudamallocasync.log")), "--json"))
    assert (found["verdict"], found["device"], found["free_total_bytes"]) == ("unknown", 5, None)
    assert found["missing"] == ["how much of that is the allocator's own cache"]


def test_an_empty_list_where_there_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("all is well\n")
    assert json.loads(printed(capsys, str(tmp_path / "log"), "--json")) == []
    assert "no out-of-memory error" in printed(capsys, str(tmp_path / "log"))


def test_a_page_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, LOG)
    assert "FRAGMENTATION  (line 6, GPU 0, torch)" in text
    assert "7.75 GiB was free in all, enough for 1.50 GiB, but not in one piece" in text
    assert "expandable_segments:True" in text


def test_what_is_wrong_with_the_text_comes_first_among_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00MiB (rounded to 1048576)\n"
    )
    (found,) = json.loads(printed(capsys, str(tmp_path / "log"), "--json"))
    assert "dump" in found["missing"][0]


def test_a_list_is_closed_before_an_error_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = gzip.compress(Path(LOG).read_bytes() + b"x" * 10_000)
    (tmp_path / "log.gz").write_bytes(whole[:-9])
    assert main(["oom", "explain", str(tmp_path / "log.gz"), "--json"]) == 1
    shown = capsys.readouterr()
    assert isinstance(json.loads(shown.out), list)
    assert "cut off" in shown.err


def test_no_list_says_that_there_is_none_where_nothing_could_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["oom", "explain", "nowhere.log", "--json"]) == 1
    assert capsys.readouterr().out == ""


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["oom", "explain", "nowhere.log"]) == 1
    assert "nowhere.log: no such file" in capsys.readouterr().err
