"""A log as it comes: whose line it is, what is told twice, junk, encodings, packing."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import BadInput, GpufragError
from gpufrag.oom_log import Oom, log_chunks, read_log
from gpufrag.oom_log.lines import LONGEST, line_of
from helpers import TESTS

FIXTURES = TESTS / "oom_log" / "fixtures"
MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU {}; 16.00 GiB total capacity; 11.00 GiB already allocated; "
    "38.50 MiB free; 15.00 GiB reserved in total by PyTorch)"
)
ONE = MESSAGE.format(0)
NEW = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 1.00 GiB is "
    "free. Of the allocated memory 13.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but "
    "unallocated."
)


def read(data: bytes) -> list[Oom]:
    return list(read_log(io.BytesIO(data)))


def sources(*lines: str) -> list[str]:
    return [oom.source for oom in read("\n".join(lines).encode())]


@pytest.mark.parametrize(
    ("prefix", "source"),
    [
        ("", ""),
        ("[rank3]: ", "rank3"),
        ("[default0]:[rank3]: ", "default0 / rank3"),
        ("\x1b[36m[rank12]:\x1b[0m ", "rank12"),
        ("2024-05-05 10:00:00 ", ""),
        ("[2024-05-05 10:00:00,123] [ERROR] [rank1]: ", "rank1"),
        ("[pod/trainer-0/main] ", "pod/trainer-0/main"),
        ("(RayTrainWorker pid=4242, ip=10.0.0.1) ", "RayTrainWorker pid=4242, ip=10.0.0.1"),
        ("[1,3]<stderr>: ", "1,3"),
        ("3: ", "3"),
        ("I0000 00:00:1714900000.000001    4242 external/xla/bfc_allocator.cc:1] ", "4242"),
        ("E1129 10:00:09.000000 4242 torch/distributed/elastic/api.py:869] ", ""),
        ("worker-1  | ", "worker-1"),
        ("2024-05-05T10:00:00.123456789Z [rank3]: ", "rank3"),
        ("[pod/trainer-0/main] 2024-05-05T10:00:00.123456789Z [rank3]: ", "pod/trainer-0/main / rank3"),
        ("2024-05-05T10:00:00.123456789+02:00 stderr F [rank3]: ", "rank3"),
        ("2024-05-05 10:00:00,123 [Rank 3] ", "Rank 3"),
        ("gpu-node-07: ", "gpu-node-07"),
        ("gpu07.cluster.local: [rank3]: ", "gpu07.cluster.local / rank3"),
        ('{"time": "2024-05-05", "rank": 3, "message": "', "rank3"),
        ('{"log":"[rank3]: ', "rank3"),
        ("10.0.0.7: [rank3]: ", "10.0.0.7 / rank3"),
    ],
)
def test_whose_a_line_is(prefix: str, source: str) -> None:
    assert line_of(1, (prefix + "RuntimeError: " + ONE).encode()).source == source


def test_a_whole_job_s_log_with_each_error_told_three_times() -> None:
    found = list(read_log(log_chunks(str(FIXTURES / "torch-ranks.log"))))
    assert [(oom.line, oom.device) for oom in found] == [(6, 0), (13, 3)]


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ([ONE, ONE], 1),
        ([ONE, "[rank3]: " + ONE], 1),
        (["[rank3]: " + ONE, ONE], 1),
        (["[rank3]: " + ONE, "[rank5]: " + ONE], 2),
        ([ONE, "[rank3]: " + ONE, "[rank5]: " + ONE, ONE], 2),
        (["[default0]: " + ONE, "[default0]:[rank3]: " + ONE], 1),
        ([ONE, MESSAGE.format(1)], 2),
        ([ONE, ONE.replace("38.50", "36.50")], 2),
        (["torch.OutOfMemoryError: " + NEW, "ERROR caught: " + NEW], 1),
        (["ERROR caught: " + NEW, "torch.OutOfMemoryError: " + NEW], 1),
        ([NEW, "FAILED test_train.py - " + NEW[:46] + "..."], 1),
        ([NEW, "FAILED test_train.py - " + NEW[:30] + "..."], 1),
        ([NEW, NEW[:46].replace("2.00", "3.00")], 2),
        ([NEW, "torch.OutOfMemoryError: Allocation on device"], 2),
    ],
)
def test_what_is_told_twice_counts_once(lines: list[str], number: int) -> None:
    assert len(sources(*lines)) == number


def test_colours_carriage_returns_and_junk() -> None:
    junk = b"\xff\xfe\x00binary\x80\r\n\r" + b"\x1b[31m50%|#####\r75%|#######\r" + ONE.encode() + b"\r\n\x9f\n"
    (found,) = read(junk)
    assert (found.line, found.device) == (2, 0)


def test_a_message_at_the_end_of_a_very_long_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x" * (3 * LONGEST + 100) + f" {ONE}\n{MESSAGE.format(1)}\n")
    assert [oom.line for oom in read_log(log_chunks(str(tmp_path / "log")))] == [1, 2]


def test_a_message_that_does_not_end_hides_no_other() -> None:
    cut, other = ONE.split("; 38.50")[0], "Failed to allocate request for 2.0GiB (2147483648B) on device ordinal 0"
    for noise in ([], ["noise"] * 6):
        lines = [cut, *noise, other, *noise, "RuntimeError: CUDA error: out of memory"]
        found = read("\n".join(lines).encode())
        assert [oom.facts.allocator for oom in found] == ["torch", "jax", "driver"]


HEADER = "[rank{}]: bfc_allocator.cc:1] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00MiB"
CHUNK = "[rank1]: bfc_allocator.cc:1] InUse at 7f of size 256"


@pytest.mark.parametrize(
    ("begin", "then"),
    [
        ([HEADER.format(1)], ["noise"] * 5000),
        ([HEADER.format(1), HEADER.format(2)], [CHUNK] * 5000),
        ([HEADER.format(rank) for rank in range(1500)], []),
        ([ONE.split("; 38.50")[0]], ["noise"] * 500),
    ],
)
def test_what_never_ends_is_given_up(begin: list[str], then: list[str]) -> None:
    lines = iter([f"{line}\n".encode() for line in (*begin, *then)])
    next(read_log(lines))
    assert len(list(lines)) > 400


@pytest.mark.parametrize(
    "text", ["[" * LONGEST, "(" * LONGEST, "1: " * LONGEST, "Tried to allocate 1" + "1," * LONGEST, "a." * LONGEST]
)
def test_lines_made_to_keep_a_pattern_busy(text: str) -> None:
    assert read(f"{text} out of memory GPU \n".encode()) == []


@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, bz2.compress, lzma.compress, lambda data: data.decode().encode("utf-16")]
)
def test_packed_or_in_another_encoding(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(pack(b"start\n" + ONE.encode() + b"\n"))
    (found,) = read_log(log_chunks(str(tmp_path / "log")))
    assert (found.line, found.device) == (2, 0)


def test_standard_input() -> None:
    assert len(list(read_log(log_chunks("-", io.BufferedReader(io.BytesIO(ONE.encode())))))) == 1


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (gzip.compress(ONE.encode() * 99)[:-20], "cut off"),
        (b"\x28\xb5\x2f\xfd....", "zstd -dc"),
        (b"PK\x03\x04..", "unzip"),
    ],
)
def test_packed_badly_or_strangely(data: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(BadInput, match=told):
        list(log_chunks(str(tmp_path / "log")))


def test_a_standard_input_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(GpufragError, match="is closed"):
        list(log_chunks("-"))


@pytest.mark.parametrize(
    ("name", "told"), [("nowhere", "no such file"), (".", "is a directory"), ("a\0b", "cannot be read")]
)
def test_a_file_that_cannot_be_read(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(GpufragError, match=told):
        list(log_chunks(str(tmp_path / name)))


@given(st.binary(max_size=400))
def test_any_bytes_are_read(data: bytes) -> None:
    read(data)


WORDS = [
    *ONE.split(" "), *["\n", "\r", "[rank1]:", "\x1b[31m", "GPU \x00 has a total", "17179869184.00 GiB"],
    "9" * 25 + " GiB", "Process 7 has 1.00 GiB memory in use.", "MPS backend out of memory (", "Requested   : 1.00 GiB",
    "InUse at 7f of size 256", "Free  at 7f of size 256 next 3", "Limit:      7", "InUse:    256", "MaxAllocSize:   9",
    "bfc_allocator.cc:1] ran out of memory trying to allocate 1.00MiB (rounded to 1048576)",
    "OOM when allocating tensor with shape[1,2] and type float", "RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes",
    "Allocation on device 0 would exceed allowed memory",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join))
def test_any_pieces_of_messages_in_any_order_are_read(text: str) -> None:
    for oom in read(text.encode()):
        assert oom.line <= text.count("\n") + 1
        assert oom.facts.requested is None or oom.facts.requested >= 0


@given(st.lists(st.sampled_from(["noise", "[rank1]: more noise", "Traceback", ""]), max_size=9), st.integers(0, 9))
def test_an_error_is_found_wherever_it_stands(noise: list[str], place: int) -> None:
    lines = [*noise[:place], ONE, *noise[place:]]
    assert [oom.line for oom in read("\n".join(lines).encode())] == [len(noise[:place]) + 1]
