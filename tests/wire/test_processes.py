"""Parents and children in a /proc of our own."""

import os
from pathlib import Path

from gpufrag.wire.processes import descendants, environment_of, parent_of


def test_living_descendants_are_found(tmp_path: Path) -> None:
    for pid, parent, state in ((10, 1, "S"), (11, 10, "S"), (12, 11, "R"), (13, 11, "Z"), (20, 1, "S"), (21, 20, "S")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a ) b) {state} {parent} 0 0")
    (tmp_path / "30").mkdir()  # it has ended
    (tmp_path / "self").mkdir()
    assert descendants(10, tmp_path) == [11, 12]
    assert parent_of(12, tmp_path) == 11
    assert parent_of(30, tmp_path) is None


def test_environment_of_a_missing_process_is_empty(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "environ").write_bytes(b"A=b=c\0EMPTY=\0\xff=x\0\0")
    assert environment_of(7, tmp_path) == {"A": "b=c", "EMPTY": "", "\ufffd": "x"}
    assert environment_of(8, tmp_path) == {}
    assert environment_of(os.getpid())["PATH"]
