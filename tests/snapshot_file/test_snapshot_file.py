"""Snapshot files: recorded ones, damaged, hostile or unreadable ones, and what they record of the driver."""

import errno
import gzip
import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from gpufrag.errors import BadInput, GpufragError, Unavailable
from gpufrag.model.allocatable import Driver
from gpufrag.model.settings import parse_conf
from gpufrag.snapshot_file import load, read
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
def test_recorded_snapshot_equals_pickle_load(path):
    with gzip.open(path) as file:
        expected = pickle.load(file)  # noqa: S301 (recorded by ourselves)
    assert load(path) == expected


def test_json_is_read_and_file_names_do_not_matter(saved, golden):
    assert load(TESTS / "golden" / "train-cap4.json.gz") == golden("train-cap4").raw
    assert load(saved(gzip.decompress(SMALL.read_bytes()), "renamed.json")) == load(SMALL)
    assert load(saved(b'\n {"segments": []}')) == {"segments": []}


@pytest.mark.parametrize("data", [SMALL.read_bytes(), gzip.decompress(SMALL.read_bytes()), b'{"segments": []}'])
def test_standard_input_is_read(data):
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
        (b'{"segments": [', "its JSON is damaged or cut off at line 1, column 15"),
        (b'{"a": NaN}', "its JSON has NaN, which is not a number"),
        (b'{"a": -Infinity}', "its JSON has -Infinity, which is not a number"),
        (b'{"a": 1' + b"0" * 30 + b"}", "its JSON has 1000000000000000000000000000000, beyond 64 bits"),
        (b'{"a": -1' + b"0" * 20 + b"}", "beyond 64 bits"),
        (b"[" * 5_000, "its JSON is nested too deep"),
        (b'{"a": "\xff"}', "neither a pickle nor JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "its JSON has a number of thousands of digits"),
        (pickle.dumps({"a": Path("x")}), "it holds more than plain data"),
    ],
)
def test_other_file_is_refused_in_one_line(saved, data, words):
    path = saved(data)
    error, text = _refusal(path)
    assert isinstance(error, BadInput)
    assert text.startswith(f"{path}: ")
    assert words in text


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_file_above_the_bound_is_refused(saved, monkeypatch, compress):
    path = saved(compress(b"[" + os.urandom(1_000_000).hex().encode() + b"]"))
    _, text = _refusal(path, max_bytes=1_000_000)
    assert "larger than 977 KiB decompressed" in text
    monkeypatch.setenv("GPUFRAG_MAX_SNAPSHOT", "1MB")
    assert "raise GPUFRAG_MAX_SNAPSHOT" in _refusal(path)[1]


def test_several_gzip_members_are_one_file(saved):
    data = b'{"segments": []}'
    assert load(saved(gzip.compress(data[:5]) + gzip.compress(data[5:]))) == {"segments": []}


CHILD = """
import resource, sys
from gpufrag.errors import BadInput
from gpufrag.snapshot_file import load

pages = int(open("/proc/self/statm").read().split()[0])
allowed = pages * resource.getpagesize() + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
try:
    load(sys.argv[1])
    print("read")
except BadInput as error:
    print(error)
"""


def _read_within(path: Path, memory: int) -> str:
    """Read a file in a process that may take `memory` bytes more than it has at its start."""
    command = [sys.executable, "-c", CHILD, str(path), str(memory)]
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent / "exporter"), "MALLOC_ARENA_MAX": "1"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True, env=env)
    return result.stdout


MB = 1 << 20
REFUSED = {
    "lists": b"]", "dicts": b"}", "dicts of one": b"}NNs", "marks": b"(", "empty tuples": b")", "tuples": b"N\x85",
    "text": b"\x8c\x02ab", "json lists": b"[],", "json lists of one": b"[0],", "json dicts": b"{},",
    "json dicts of one": b'{"a":0},',
}  # fmt: skip
ACCEPTED = {
    "pairs": b"K\x00K\x00\x86", "memo": b"N\x94", "numbers": b"M\x10\x27", "floats": b"G" + bytes(8),
    "json words": b'"ab",', "json numbers": b"9999,",
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED | ACCEPTED)
def test_data_takes_at_most_20_times_its_size(saved, kind):
    item = (REFUSED | ACCEPTED)[kind]
    items = item * (6 * MB // len(item))
    data = b"[" + items[:-1] + b"]" if kind.startswith("json") else b"\x80\x04](" + items + b"e."
    answer = _read_within(saved(data), 20 * len(data) + 8 * MB)
    assert ("takes more than 14 times" in answer) == (kind in REFUSED)


@pytest.mark.parametrize("members", [1, 16])
def test_gzip_bomb_is_refused_before_memory_is_spent(saved, members):
    """65 kB become 64 MB of lists, 1 MB becomes 1 GB."""
    bomb = gzip.compress(b"\x80\x04" + b"]" * (64 * MB), 9) * members
    assert "compressed more than 100:1" in _read_within(saved(bomb), 400 * MB)


def test_endless_file_is_refused():
    _, text = _refusal("/dev/zero")
    assert "neither a pickle nor JSON" in text


def test_too_little_memory_is_unavailable(saved, monkeypatch):
    def full(data):
        raise MemoryError

    monkeypatch.setattr("gpufrag.snapshot_file.plain_pickle.loads", full)
    error, text = _refusal(saved(b"\x80\x04N."))
    assert isinstance(error, Unavailable)
    assert "not enough memory" in text


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EISDIR, "is a directory; name the snapshot file in it"),
        (errno.ENOENT, "no such file; take a snapshot with"),
        (errno.EACCES, "permission denied; make the file readable"),
        (errno.EIO, "cannot be read (Input/output error)"),
    ],
)
def test_unreadable_file_is_refused(saved, monkeypatch, code, words):
    """The answer is simulated: root may read everything."""

    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    path = saved(b"x")
    monkeypatch.setattr(Path, "open", refuse)
    error, text = _refusal(path)
    assert isinstance(error, Unavailable)
    assert words in text


def test_impossible_path_is_refused():
    assert "cannot be read" in _refusal("a\0b")[1]


@pytest.fixture
def saved_as(saved):
    """saved_as(value) -> the path of its pickle."""
    return lambda value: saved(pickle.dumps(value, 4))


def test_json_case_has_driver_and_settings(golden):
    saved = read(TESTS / "golden" / "train-cap4-expandable.json.gz")
    case = golden("train-cap4-expandable")
    assert saved.driver == case.driver
    assert saved.heap == case.heap
    assert saved.heap.settings.expandable_segments
    assert saved.knows_settings


def test_unknown_limit_and_driver_are_none():
    assert read(TESTS / "golden" / "train-default.json.gz").driver.limit is None
    saved = read(SNAPSHOTS / "default-0.pickle.gz")
    assert (saved.driver, saved.knows_settings) == (Driver(), True)


def test_list_of_segments_takes_given_settings(saved_as):
    path = saved_as(load(SNAPSHOTS / "default-0.pickle.gz")["segments"])
    assert not read(path).knows_settings
    saved = read(path, parse_conf("max_split_size_mb:64"))
    assert saved.knows_settings
    assert saved.heap.settings.max_split_size == 64 << 20


def test_recorded_settings_win_over_given_ones():
    saved = read(SNAPSHOTS / "exp4g-0.pickle.gz", parse_conf("expandable_segments:False"))
    assert saved.heap.settings.expandable_segments


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        *(
            ({"driver_free": size}, "its driver_free is not a size in bytes")
            for size in (-1, 1.5, "8GiB", True, 1 << 63)
        ),
        ({"driver_free": 5, "driver_total": 4}, "its driver_free is 5, more than its driver_total, 4"),
        ({"settings": 5}, "its allocator settings are a int, not a mapping"),
        ({"allocator_settings": ["expandable_segments"]}, "its allocator settings are a list, not a mapping"),
    ],
)
def test_broken_or_contradictory_figures_are_refused(saved, keys, message):
    path = saved(json.dumps({"segments": [], **keys}).encode(), "case.json")
    with pytest.raises(BadInput, match=rf"case\.json: {message}"):
        read(path)


@pytest.mark.parametrize(
    "value", [None, 7, "text", [7], {"segments": 7}, {"other": []}, [{}], [[]], {"segments": [None]}]
)
def test_other_data_is_refused_with_the_file_name(saved_as, value):
    path = saved_as(value)
    with pytest.raises(BadInput) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def _laughs():
    """Return a list of 2^60 elements that takes a few hundred bytes in a pickle."""
    nest = []
    for _ in range(60):
        nest = [nest, nest]
    return nest


SEGMENT = ("device", "stream", "total_size", "segment_type", "segment_pool_id", "blocks")
BLOCK = ("address", "size", "requested_size", "state")
SETTINGS = ("max_split_size", "garbage_collection_threshold", "roundup_power2_divisions")


@pytest.mark.parametrize("key", [*SEGMENT, *BLOCK, *SETTINGS])
def test_hostile_value_is_refused_shortly(saved_as, key):
    segments = load(SNAPSHOTS / "default-0.pickle.gz")["segments"]
    settings = {}
    place = settings if key in SETTINGS else segments[0]["blocks"][0] if key in BLOCK else segments[0]
    place[key] = _laughs()
    with pytest.raises(BadInput) as caught:
        read(saved_as({"segments": segments, "allocator_settings": settings} if settings else segments))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000
