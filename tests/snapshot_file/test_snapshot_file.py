"""Files as they come: recorded ones, gzipped or not, cut, empty, of another kind, unreadable, from a pipe."""

import errno
import gzip
import io
import os
import pickle
from pathlib import Path

import pytest

from gpufrag.errors import BadInput, GpufragError, Unavailable
from gpufrag.model.heap import parse
from gpufrag.snapshot_file import load
from helpers import SNAPSHOTS, TESTS

RECORDED = sorted(SNAPSHOTS.glob("*.pickle.gz"))
SMALL = SNAPSHOTS / "pools-streams.pickle.gz"


@pytest.fixture
def saved(tmp_path):
    """saved(bytes) -> the path of a file that holds them."""

    def save(data: bytes, name: str = "snapshot.pickle") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return save


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_recorded_snapshots_are_read_as_python_reads_them(path):
    with gzip.open(path) as file:
        expected = pickle.load(file)  # noqa: S301 (recorded by ourselves)
    assert load(path) == expected


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_recorded_snapshots_are_heaps(path):
    assert parse(load(path)).segments


def test_the_json_of_the_recorded_cases(golden):
    assert load(TESTS / "golden" / "train-cap4.json.gz") == golden("train-cap4").raw


def test_the_name_does_not_matter(saved):
    data = gzip.decompress(SMALL.read_bytes())
    assert load(saved(data, "renamed.json")) == load(SMALL)


def test_plain_json(saved):
    assert load(saved(b'\n {"segments": []}')) == {"segments": []}


@pytest.mark.parametrize("data", [SMALL.read_bytes(), gzip.decompress(SMALL.read_bytes()), b'{"segments": []}'])
def test_standard_input(data):
    assert "segments" in load("-", stdin=io.BufferedReader(io.BytesIO(data)))


def _refusal(path, **options):
    with pytest.raises(GpufragError) as caught:
        load(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 300
    return caught.value, text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty: the dump was cut off or never written"),
        (gzip.compress(b"", mtime=0), "neither a pickle nor JSON"),
        (b"  \n ", "neither a pickle nor JSON"),
        (b"PK\x03\x04rest", "zip archive, as torch.save writes"),
        (b"\x7fELF", "neither a pickle nor JSON"),
        (gzip.compress(b"\x7fELF", mtime=0), "neither a pickle nor JSON"),
        (b"time,address\n1,2\n", "neither a pickle nor JSON"),
        (SMALL.read_bytes()[:-20], "gzip stream is cut off or damaged; copy it again"),
        (SMALL.read_bytes()[:5], "gzip stream is cut off or damaged"),
        (gzip.decompress(SMALL.read_bytes())[:-20], "it is cut off in the middle"),
        (b'{"segments": [', "damaged or cut off at line 1, column 15 of its JSON"),
        (b'{"a": NaN}', "its JSON holds NaN, which is no number"),
        (b'{"a": -Infinity}', "its JSON holds -Infinity, which is no number"),
        (b'{"a": 1' + b"0" * 30 + b"}", "its JSON holds 1000000000000000000000000000000, which is beyond 64 bits"),
        (b'{"a": -1' + b"0" * 20 + b"}", "which is beyond 64 bits"),
        (b"[" * 200_000, "its JSON is nested too deep"),
        (b'{"a": "\xff"}', "neither a pickle nor JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "its JSON holds a number of thousands of digits"),
        (pickle.dumps({"a": Path("x")}), "it holds more than plain data"),
    ],
)
def test_what_cannot_be_a_snapshot_is_told_in_one_line(saved, data, words):
    path = saved(data)
    error, text = _refusal(path)
    assert isinstance(error, BadInput)
    assert text.startswith(f"{path}: ")
    assert words in text


def test_a_decompression_bomb_is_stopped_at_the_bound(saved):
    path = saved(gzip.compress(b"[" + b" " * 10_000_000 + b"]"))
    _, text = _refusal(path, max_bytes=1_000_000)
    assert "holds more than 1000000 bytes unpacked" in text


def test_an_endless_file_of_another_kind_is_not_read():
    _, text = _refusal("/dev/zero")
    assert "neither a pickle nor JSON" in text


def test_more_than_the_memory_holds(saved, monkeypatch):
    def full(data):
        raise MemoryError

    monkeypatch.setattr("gpufrag.snapshot_file.plain_pickle.loads", full)
    error, text = _refusal(saved(b"\x80\x04N."))
    assert isinstance(error, Unavailable)
    assert "larger than the free memory" in text


def test_a_directory(tmp_path):
    assert _refusal(tmp_path)[1] == f"{tmp_path}: is a directory; name the snapshot file inside it"


def test_a_file_that_is_not_there(tmp_path):
    assert f"{tmp_path}/x: no such file; take one with" in _refusal(tmp_path / "x")[1]


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.EACCES, "permission denied; make it readable"), (errno.EIO, "cannot be read (Input/output error)")],
)
def test_a_file_that_cannot_be_opened(saved, monkeypatch, code, words):
    """By a stand-in for the system's answer, since root may read everything."""

    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    path = saved(b"x")
    monkeypatch.setattr(Path, "open", refuse)
    error, text = _refusal(path)
    assert isinstance(error, Unavailable)
    assert words in text


def test_a_path_that_no_system_has():
    assert "cannot be read" in _refusal("a\0b")[1]
