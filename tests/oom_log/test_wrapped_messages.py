"""Torch's message wrapped by terminals and traceback printers, or cut off."""

from __future__ import annotations

import re
from collections.abc import Callable
from textwrap import wrap

import pytest

from gpufrag.oom_log import Oom, read_log

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 "
    "GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.89 GiB memory in use. 78.50 "
    "GiB allowed; Of the allocated memory 70.00 GiB is allocated by PyTorch, with 64.00 MiB allocated in private "
    "pools (e.g., CUDA Graphs), and 6.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
Printer = Callable[[str, int], list[str]]


def terminal(text: str, width: int) -> list[str]:
    """In the middle of words."""
    return [text[start : start + width] for start in range(0, len(text), width)]


def box(text: str, width: int) -> list[str]:
    return [f"│ {line:<{width}} │" for line in wrap(text, width)]


def launcher(text: str, width: int) -> list[str]:
    """Each line has the rank before it."""
    return [f"[rank3]: {line}" for line in wrap(text, width)]


def read(lines: list[str]) -> list[Oom]:
    return list(read_log(f"{line}\n".encode() for line in lines))


@pytest.mark.parametrize("width", [64, 72, 80, 100, 132])
@pytest.mark.parametrize("printer", [terminal, wrap, box, launcher])
def test_message_wrapped_at_any_width_is_the_same(printer: Printer, width: int) -> None:
    (whole,), (wrapped,) = read([MESSAGE]), read([*printer(MESSAGE, width), "and the log goes on"])
    assert (wrapped.facts, wrapped.device) == (whole.facts, whole.device)


def sentences(text: str) -> list[str]:
    return re.sub(r"(?<=[.;]) (?=[A-Z])", "\n", text).split("\n")


@pytest.mark.parametrize("mark", ["", "[rank1]: ", "3: ", "worker | "])
def test_message_with_a_line_per_sentence_is_the_same(mark: str) -> None:
    lines = [mark + line for line in sentences(MESSAGE)]
    assert lines[0].endswith("CUDA out of memory.")
    (whole,), (broken,) = read([MESSAGE]), read([*lines, "and the log goes on"])
    assert (broken.line, broken.facts, broken.device) == (1, whole.facts, whole.device)


@pytest.mark.parametrize(
    "line",
    ["CUDA out of memory. Tried to allocate 2.0", "HIP out of memory. Tried", "OutOfMemoryError: XPU out of memory."],
)
def test_message_cut_off_before_its_size_hides_no_other(line: str) -> None:
    first, second = read([line, "Traceback (most recent call last):", MESSAGE])
    assert (first.line, first.facts.requested, second.line) == (1, None, 3)


def test_program_that_mentions_an_error_has_none() -> None:
    assert read(["caught: CUDA out of memory. Retrying with half the batch", "if 'CUDA out of memory' in text:"]) == []
