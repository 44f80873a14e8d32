"""One out-of-memory error of a log, the sizes and names in it, and the messages that fit in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from ..model.facts import Facts
from .log_file import Line

SIZE = (
    r"((?<![0-9,.])(?:[0-9]{1,26}|[0-9]{1,3}(?:,[0-9]{3}){1,8})(?:\.[0-9]{1,6})?"
    r" {0,2}(?:[KMGTP]i?B|[KMGT]\b|bytes?\b|B\b))"
)
"""Every repetition is bounded, here and in all patterns of this package: time grows linearly with a line's length."""
_PARTS = re.compile(r"([0-9,]+)(?:\.([0-9]+))? *([KMGTP]?)(i?)")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_NO_FIGURE = 1 << 60
"""Torch prints 17179869184.00 GiB for a figure that it could not read."""
_FOLDED = re.compile(r"\[repeated ([0-9]{1,7})x across cluster\]|message repeated ([0-9]{1,7}) times: \[")
_BEFORE = 160
"""Characters at the start of a line in which a launcher's prefix stands."""


class Size(NamedTuple):
    bytes: int | None = None
    """None if unknown."""
    precision: int = 0
    """Half of the last printed digit."""


@dataclass(frozen=True)
class Oom:
    """One out-of-memory error as a log has it."""

    line: int
    """Where its message begins, from 1."""
    source: str
    """The rank, pod or process that the launcher's prefix names; empty if there is none."""
    device: int | None
    facts: Facts
    missing: tuple[str, ...] = ()
    """What is doubtful about the text itself."""
    before: str = ""
    """The line up to the message, to tell copies of an error from other ranks' errors."""


def oom_at(line: Line, device: int | None, facts: Facts, *missing: str) -> Oom:
    """Return an Oom of the message that begins in `line`."""
    folded = _FOLDED.search(line.text)
    if folded is not None:
        count = folded[1] or folded[2]
        missing = (*missing, f"the {count} further errors that the logger folded into this line: {folded[0]!r}")
    before = line.text[:_BEFORE].partition("out of memory")
    return Oom(line.number, line.source, device, facts, missing, before[0] if before[1] else "")


def read_size(text: str | None, binary: bool = False) -> Size:
    """Return the size of a text that SIZE matched; unknown if there is none, or torch had no figure to print.

    A bare letter (`1.50G`, as XLA prints) is a power of 1024; so is `GB` if `binary`.
    """
    if text is None or (parts := _PARTS.match(text)) is None:
        return Size()
    whole, fraction, letter, i = parts.groups(default="")
    decimal = letter and not i and not binary and text.endswith("B")
    unit = (1000 if decimal else 1024) ** _POWERS[letter]
    size = int(whole.replace(",", "") + fraction) * unit // 10 ** len(fraction)
    return Size() if size >= _NO_FIGURE else Size(size, unit // (2 * 10 ** len(fraction)))


_PLATFORMS = {
    "hip": re.compile(r"\bHIP\b|\bhip[A-Z]|HIPBLAS|ROCm|rocm|MIOPEN|\bAMD\b"),
    "xpu": re.compile(r"\bXPU\b|\bUR_RESULT|SYCL|oneAPI"),
    "npu": re.compile(r"\bNPU\b|\bACL_ERROR"),
    "cuda": re.compile(r"CUDA|[Cc]uda|cuMem|NVML|nvidia|NVIDIA|CU(?:BLAS|DNN)|THC"),
}


def platform_in(text: str) -> str:
    """Return the hardware that a message names, a key of model.advice.PLATFORMS; empty if it names none."""
    return next((name for name, pattern in _PLATFORMS.items() if pattern.search(text)), "")


_JAX = re.compile(r"org_tensorflow|external/(?!local_)|\bjax|XlaRuntimeError")
_TENSORFLOW = re.compile(r"tensorflow|external/local_")


def framework_in(text: str, default: str) -> str:
    """Return jax or tensorflow by the source path in a line: JAX builds XLA, and once TensorFlow, below external/."""
    if _JAX.search(text):
        return "jax"
    return "tensorflow" if _TENSORFLOW.search(text) else default


_DEVICE = re.compile(r"device ordinal ([0-9]{1,4})|GPU:([0-9]{1,4})|GPU_([0-9]{1,4})_bfc|on device ([0-9]{1,4})\b")
_HOST = re.compile(
    r"Allocator \(\w{0,20}host\w{0,20}\)|by allocator \w{0,20}(?:cpu|host)"
    r"|(?:type \w{1,20} on /|__wrapped__)\S{0,160}device:CPU:[0-9]"
)
_NOTICE = re.compile(r"may not be an issue|\bretry(?:ing)?\b|fall(?:s|ing)? back|not a failure", re.IGNORECASE)


def device_in(text: str) -> int | None:
    found = _DEVICE.search(text)
    return None if found is None else int(next(filter(None, found.groups())))


def is_of_host(text: str) -> bool:
    """Return whether the message is of one of TensorFlow's allocators of host memory, which read the same."""
    return _HOST.search(text) is not None


def is_notice(text: str) -> bool:
    """Return whether a library reports an attempt that it repeats or does without; a failure logs another line."""
    return _NOTICE.search(text) is not None


Found = re.Match[str]
_WIDTHS = {
    name: width
    for width, names in {
        16: "complex128",
        8: "double int64 uint64 complex64",
        4: "float int32 uint32",
        2: "half bfloat16 int16 uint16",
        1: "int8 uint8 bool",
    }.items()
    for name in names.split()
}
"""Bytes of TensorFlow's types."""
_DRIVER_REQUEST = re.compile(rf"alloc\w{{0,10}}:? (?:async )?(?:of )?(?:size )?{SIZE}")


def _driver(found: Found) -> Facts:
    request = _DRIVER_REQUEST.search(found.string)
    need = read_size(request and request[1])
    return Facts(need.bytes, precision=need.precision, allocator="driver")


def _with_sizes(found: Found, allocator: str = "torch", refused_by_limit: bool = False) -> Facts:
    """Prefer the size in bytes to a rounded one next to it."""
    known = [size for size in map(read_size, found.groups()) if size.bytes is not None]
    best = min(known, key=lambda size: size.precision, default=Size())
    return Facts(best.bytes, precision=best.precision, allocator=allocator, refused_by_limit=refused_by_limit)


def _xla(found: Found) -> Facts:
    return _with_sizes(found, framework_in(found.string, "jax"))


def _xla_free(found: Found) -> Facts:
    need, free = map(read_size, found.groups())
    return Facts(need.bytes, free_total=free.bytes, precision=max(need.precision, free.precision), allocator="jax")


def _xla_program(found: Found) -> Facts:
    need, size = map(read_size, found.groups())
    return Facts(need.bytes, size=size.bytes, allocator="jax")


def _tensor(found: Found) -> Facts:
    """The size is the product of the printed shape and the type's width."""
    sides = [int(side) for side in (found[1] or "").split(",") if side.strip()]
    width = _WIDTHS.get(found[2])
    need = None if width is None else min(prod(sides) * width, 1 << 60)
    return Facts(need, allocator=framework_in(found.string, "tensorflow"))


FORMS: tuple[tuple[re.Pattern[str], Callable[[Found], Facts]], ...] = (
    (
        re.compile(f"preemptively rejected because it would exceed .{{0,80}}Requested size: {SIZE}"),
        lambda found: _with_sizes(found, refused_by_limit=True),
    ),
    (re.compile("Tried to allocate more than 1EB memory"), lambda found: Facts(1 << 60)),
    (re.compile(f"Attempting to (?:allocate|reserve) {SIZE}.{{0,80}}There (?:are|is) {SIZE} free"), _xla_free),
    (re.compile(f"Ran out of memory in memory space hbm\\. +Used {SIZE} of {SIZE}"), _xla_program),
    (re.compile(rf"Failed to allocate request for {SIZE}(?: \({SIZE}\))?"), _xla),
    (
        re.compile(
            f"(?<![Rr]an )[Oo]ut of memory (?:while )?(?:trying to allocate|allocating) {SIZE}(?! \\(allocated so far)"
        ),
        _xla,
    ),
    (re.compile(f"Failed to allocate {SIZE} for new constant"), _xla),
    (
        re.compile(
            r"OOM when allocating (?:temporary )?tensor"
            r"(?: (?:with|of) shape ?\[([0-9, ]{0,200})\](?: and type (\w{1,20}))?)?"
        ),
        _tensor,
    ),
    (
        re.compile(
            r"(?:ResourceExhaustedError|RESOURCE_EXHAUSTED).{0,240}failed to allocate memory"
            "|Dst tensor is not initialized"  # a copy to a device without room
        ),
        lambda found: Facts(None, allocator=framework_in(found.string, "tensorflow")),
    ),
    (
        re.compile(r"OutOfMemoryError: Allocation on device *$|NVML_SUCCESS == r INTERNAL ASSERT FAILED"),
        lambda found: Facts(None),
    ),
    (
        re.compile(
            "CUDA (?:driver |failed with )?error:? out of memory|HIP error: out of memory|hipErrorOutOfMemory"
            "|(?<!from device: )(?<!unified memory; result: )CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
            r"|[Cc][Uu][Dd][Aa] ?[Rr]untime error \(2\) ?: out of memory|THCudaCheck FAIL .{0,300}: out of memory"
            "|(?:CUDA|cuda) (?:failed with )?error 2 .{0,120}out of memory|(?:cuda|hip)Malloc failed: out of memory"
            r"|(?:cudaError|CUresult|hipError)_?t? (?:error)?:? ?2 ?\(out of memory\)"
            "|uda failure (?:[0-9]{1,3} )?'out of memory'"
            "|(?:CU|HIP)BLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"
        ),
        _driver,
    ),
)
"""The first that matches a line names what failed."""


def read_message(line: Line) -> Oom | None:
    """Return the error of a message that fits in one line; None if the line is no such message."""
    if is_of_host(line.text) or is_notice(line.text):
        return None
    for pattern, facts in FORMS:
        found = pattern.search(line.text)
        if found is not None:
            return oom_at(line, device_in(line.text), replace(facts(found), platform=platform_in(line.text)))
    return None
