"""Whole logs: sources, copies, junk, encodings, compression, recorded cases."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import GpufragError
from gpufrag.model.verdict import judge
from gpufrag.oom_log import Oom, log_chunks, read_log
from gpufrag.oom_log.log_file import LONGEST, line_of
from gpufrag.oom_log.reading import Duplicates, _Seen
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
        ("[rank: 3] ", "rank: 3"),
        ("[trainer3]:", "trainer3"),
        ("Tue May 20 10:42:56 2025[1,3]<stderr>:", "1,3"),
        ("[prterun-node-7@1,3]<stderr>: ", "prterun-node-7@1,3"),
        ("May 20 10:42:56 node-7 python3[4242]: ", "node-7 python3[4242]"),
    ],
)
def test_prefix_names_the_source(prefix: str, source: str) -> None:
    assert line_of(1, (prefix + "RuntimeError: " + ONE).encode()).source == source


def test_job_log_with_each_error_three_times() -> None:
    found = list(read_log(log_chunks(str(FIXTURES / "torch-ranks.log"))))
    assert [(oom.line, oom.device) for oom in found] == [(6, 0), (13, 3)]


RANK = ("fragmentation", 14.06, 0)


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        ("retry-notice", []),
        ("retry-notice-fatal", [(2, "", "unknown", None, None)]),
        ("impossible-figures", [(1, "", "unknown", 16, 0)]),
        ("figures-denied", [(1, "", "unknown", 9866 / 1024, 1)]),
        ("doc-overclaim", [(1, "", "fragmentation", 2, 0)]),
        ("rank-marks-lightning", [(n + 1, f"rank: {n}", *RANK) for n in range(3)]),
        ("rank-marks-mpirun-timestamp", [(n + 1, f"1,{n}", *RANK) for n in range(3)]),
        ("rank-marks-ray-repeated", [(1, "W pid=1", *RANK), (2, "W pid=7", *RANK)]),
        ("rank-marks-torchrun-role", [(n + 1, f"trainer{n}", *RANK) for n in range(3)]),
        ("other-hardware-hip", [(2, "", "fragmentation", 8.54, 0)]),
        ("other-hardware-hip-neighbours", [(1, "", "neighbours", 76 / 1024, 0)]),
    ],
)
def test_public_report_gives_verdict(name: str, errors: list[tuple[int, str, str, float | None, int | None]]) -> None:
    found = [
        (oom.line, oom.source, judge(oom.facts).cause.value, oom.facts.requested, oom.device)
        for oom in read_log(log_chunks(str(FIXTURES / f"{name}.log")))
    ]
    expected = [(*error[:3], None if error[3] is None else int(error[3] * (1 << 30)), error[4]) for error in errors]
    assert found == expected


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("impossible-figures", "free memory (85.0 GiB) exceeds the device's size (15.5 GiB)"),
        ("doc-overclaim", "the largest free block, and whether free bytes belong to another stream or a private pool"),
        ("rank-marks-ray-repeated", "the 6 further errors that the logger folded into this line"),
        ("other-hardware-hip", "this build has no expandable segments"),
        ("other-hardware-hip-neighbours", "amd-smi"),
        ("figures-denied", "the error gives no free memory"),
    ],
)
def test_public_report_states_doubt_and_fitting_advice(name: str, words: str) -> None:
    oom = list(read_log(log_chunks(str(FIXTURES / f"{name}.log"))))[-1]
    verdict = judge(oom.facts)
    assert words in " ".join((*verdict.evidence, *oom.missing, *verdict.missing, verdict.next_step))
    assert "nvidia-smi" not in verdict.next_step or oom.facts.platform == "cuda"


@pytest.mark.parametrize(
    "notice",
    [
        "cuMemCreate CUDA_ERROR_OUT_OF_MEMORY (may not be an issue e.g. torch allocator will free cache and retry)",
        "CUDA error: out of memory; retrying with a smaller batch",
        "cudaMalloc failed: out of memory, falling back to host memory",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes. Will retry.",
    ],
)
def test_notice_of_a_retry_is_no_error(notice: str) -> None:
    assert read(notice.encode()) == []


def test_copies_under_unknown_prefix_are_stated_as_doubt() -> None:
    """The prefix may be a rank's: then these are three errors, not copies."""
    first, *others = read("\n".join(f"w#{rank} > {ONE}" for rank in (0, 1, 1, 2)).encode())
    assert first.missing == ()
    assert [other.line for other in others] == [2, 4]
    assert all("does not know the prefix" in other.missing[0] for other in others)


def test_message_repeated_by_syslog_is_mentioned() -> None:
    (found,) = read(f"May 20 10:42:56 node-7 python3[4242]: message repeated 5 times: [ {ONE}]".encode())
    assert "the 5 further errors" in found.missing[0]


@pytest.mark.parametrize("text", [NEW, "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2.00 GiB."])
def test_many_distinct_errors_are_compared_with_few(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def is_of(seen: _Seen, names: frozenset[str]) -> bool:
        nonlocal compared
        compared += 1
        return False

    monkeypatch.setattr(_Seen, "is_of", is_of)
    found = read("\n".join(text.replace("2.00 GiB", f"{size} MiB") for size in range(2000, 8000, 2)).encode())
    assert len(found) == 3000
    assert compared < 3 * len(found)


def test_only_recent_errors_are_remembered() -> None:
    duplicates, (oom,) = Duplicates(), read(ONE.encode())
    for line in range(1, 3000):
        facts = replace(oom.facts, requested=line)
        assert [*duplicates.new(replace(oom, facts=facts))]
    assert len(duplicates._seen) <= 1000
    assert [*duplicates.new(replace(oom, facts=facts))] == []


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
        ([f"10:42:56 ERROR {ONE}", f"10:42:58,1 ERROR {ONE}"], 1),
        ([f"2025-05-20 ERROR {ONE}", f"2025-05-21 ERROR {ONE}"], 1),
        ([f"May 20 ERROR {ONE}", f"May 21 ERROR {ONE}"], 1),
    ],
)
def test_copies_count_once(lines: list[str], number: int) -> None:
    assert len(sources(*lines)) == number


def test_error_among_colours_and_junk_is_found() -> None:
    junk = b"\xff\xfe\x00binary\x80\r\n\r" + b"\x1b[31m50%|#####\r75%|#######\r" + ONE.encode() + b"\r\n\x9f\n"
    (found,) = read(junk)
    assert (found.line, found.device) == (2, 0)


def test_message_at_the_end_of_a_long_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x" * (3 * LONGEST + 100) + f" {ONE}\n{MESSAGE.format(1)}\n")
    assert [oom.line for oom in read_log(log_chunks(str(tmp_path / "log")))] == [1, 2]


def test_unfinished_message_hides_no_other() -> None:
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
def test_message_without_end_is_closed(begin: list[str], then: list[str]) -> None:
    lines = iter([f"{line}\n".encode() for line in (*begin, *then)])
    next(read_log(lines))
    assert len(list(lines)) > 400


@pytest.mark.parametrize(
    "text", ["[" * LONGEST, "(" * LONGEST, "1: " * LONGEST, "Tried to allocate 1" + "1," * LONGEST, "a." * LONGEST]
)
def test_hostile_line_is_no_error(text: str) -> None:
    assert read(f"{text} out of memory GPU \n".encode()) == []


@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, bz2.compress, lzma.compress, lambda data: data.decode().encode("utf-16")]
)
def test_compressed_or_encoded_log_is_read(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(pack(b"start\n" + ONE.encode() + b"\n"))
    (found,) = read_log(log_chunks(str(tmp_path / "log")))
    assert (found.line, found.device) == (2, 0)


def test_standard_input_is_read() -> None:
    assert len(list(read_log(log_chunks("-", io.BufferedReader(io.BytesIO(ONE.encode())))))) == 1


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("cut.gz", gzip.compress(ONE.encode() * 99)[:-20], "cut off"),
        ("log.zst", b"\x28\xb5\x2f\xfd....", "zstd -dc"),
        ("log.zip", b"PK\x03\x04..", "unzip"),
        ("nowhere", None, "no such file"),
        (".", None, "is a directory"),
        ("a\0b", None, "cannot be read"),
    ],
)
def test_unreadable_file_is_refused(name: str, data: bytes | None, message: str, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(GpufragError, match=message):
        list(log_chunks(str(tmp_path / name)))


def test_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(GpufragError, match="is closed"):
        list(log_chunks("-"))


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
def test_any_pieces_of_messages_are_read(text: str) -> None:
    for oom in read(text.encode()):
        assert oom.line <= text.count("\n") + 1
        assert oom.facts.requested is None or oom.facts.requested >= 0


@given(st.lists(st.sampled_from(["noise", "[rank1]: more noise", "Traceback", ""]), max_size=9), st.integers(0, 9))
def test_error_is_found_anywhere(noise: list[str], place: int) -> None:
    lines = [*noise[:place], ONE, *noise[place:]]
    assert [oom.line for oom in read("\n".join(lines).encode())] == [len(noise[:place]) + 1]
