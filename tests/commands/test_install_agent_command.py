"""`gpufrag install-agent DIR`: one line to set on stdout, what to do with it on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufrag.cli import main


def test_stdout_is_the_variable_to_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for expected in ("installed", "is already installed"):
        assert main(["install-agent", str(tmp_path / "new" / "folder")]) == 0
        out, err = capsys.readouterr()
        assert out == f"PYTHONPATH={tmp_path}/new/folder/gpufrag/shim\n"
        assert expected in err


def test_unwritable_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["install-agent", str(tmp_path / "file" / "folder")]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert str(tmp_path / "file") in err


def test_empty_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install-agent", ""]) == 2
    assert "DIR is empty" in capsys.readouterr().err
