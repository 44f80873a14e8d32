"""`gpufrag install-agent DIR`: one line to set on stdout, what to do with it on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufrag.cli import main


def test_the_variable_to_set_is_all_of_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for said in ("installed", "was there already"):
        assert main(["install-agent", str(tmp_path / "new" / "folder")]) == 0
        out, err = capsys.readouterr()
        assert out == f"PYTHONPATH={tmp_path}/new/folder/gpufrag/shim\n"
        assert said in err


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["install-agent", str(tmp_path / "file" / "folder")]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert str(tmp_path / "file") in err


def test_an_empty_name_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install-agent", ""]) == 2
    assert "names no folder" in capsys.readouterr().err
