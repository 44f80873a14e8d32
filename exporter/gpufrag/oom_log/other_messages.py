"""Messages of one line that are not the allocator's long one: refusals, the driver's own, XLA."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import NamedTuple

from ..model.facts import Facts
from .lines import Line
from .oom import Oom
from .sizes import SIZE, read_size

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


def _refused(found: Found) -> Facts:
    need = read_size(found[1])
    return Facts(need and need.bytes, refused_by_limit=True, precision=need.precision if need else 0)


def _beyond(found: Found) -> Facts:
    return Facts(1 << 60)


def _driver(found: Found) -> Facts:
    return Facts(None, allocator="driver")


def _unsized(found: Found) -> Facts:
    return Facts(None)


def _unsized_tensor(found: Found) -> Facts:
    return Facts(None, allocator="tensorflow")


def _xla(found: Found) -> Facts:
    """The size in bytes where it stands beside the rounded one."""
    sizes = [size for text in found.groups() if (size := read_size(text)) is not None]
    best = min(sizes, key=lambda size: size.precision, default=None)
    return Facts(best and best.bytes, precision=best.precision if best else 0, allocator="jax")


def _xla_free(found: Found) -> Facts:
    need, free = read_size(found[1]), read_size(found[2])
    precision = max(size.precision for size in (need, free) if size) if need or free else 0
    return Facts(need and need.bytes, free_total=free and free.bytes, precision=precision, allocator="jax")


def _xla_program(found: Found) -> Facts:
    need, size = read_size(found[1]), read_size(found[2])
    return Facts(need and need.bytes, size=size and size.bytes, allocator="jax")


def _tensor(found: Found) -> Facts:
    """TensorFlow tells the shape: the size is the product of its sides and the type's bytes."""
    sides = [int(side) for side in (found[1] or "").split(",") if side.strip()]
    width = _WIDTHS.get(found[2])
    return Facts(None if width is None else min(prod(sides) * width, 1 << 60), allocator="tensorflow")


class Form(NamedTuple):
    pattern: re.Pattern[str]
    facts: Callable[[Found], Facts]


FORMS = (
    Form(re.compile(f"preemptively rejected because it would exceed .{{0,80}}Requested size: {SIZE}"), _refused),
    Form(re.compile("Tried to allocate more than 1EB memory"), _beyond),
    Form(re.compile(f"Attempting to (?:allocate|reserve) {SIZE}.{{0,80}}There (?:are|is) {SIZE} free"), _xla_free),
    Form(re.compile(f"Ran out of memory in memory space hbm\\. +Used {SIZE} of {SIZE}"), _xla_program),
    Form(re.compile(rf"Failed to allocate request for {SIZE}(?: \({SIZE}\))?"), _xla),
    Form(
        re.compile(
            f"(?<!ran )[Oo]ut of memory (?:while )?(?:trying to allocate|allocating) {SIZE}(?! \\(allocated so far)"
        ),
        _xla,
    ),
    Form(re.compile(f"Failed to allocate {SIZE} for new constant"), _xla),
    Form(
        re.compile(
            r"OOM when allocating (?:temporary )?tensor"
            r"(?: (?:with|of) shape ?\[([0-9, ]{0,200})\](?: and type (\w{1,20}))?)?"
        ),
        _tensor,
    ),
    Form(
        re.compile(
            r"(?:ResourceExhaustedError|RESOURCE_EXHAUSTED).{0,240}failed to allocate memory"
            "|Dst tensor is not initialized"  # what a copy to a device says that has no room for it
        ),
        _unsized_tensor,
    ),
    Form(re.compile(r"OutOfMemoryError: Allocation on device *$|NVML_SUCCESS == r INTERNAL ASSERT FAILED"), _unsized),
    Form(
        re.compile(
            "CUDA (?:driver |failed with )?error:? out of memory|HIP error: out of memory|hipErrorOutOfMemory"
            "|(?<!from device: )(?<!unified memory; result: )CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
            r"|[Cc][Uu][Dd][Aa] ?[Rr]untime error \(2\) ?: out of memory|THCudaCheck FAIL .{0,300}: out of memory"
            "|(?:CUDA|cuda) (?:failed with )?error 2 .{0,120}out of memory|cudaMalloc failed: out of memory"
            "|uda failure (?:[0-9]{1,3} )?'out of memory'"
            "|(?:CU|HIP)BLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"
        ),
        _driver,
    ),
)
"""The first that matches a line tells what failed."""
_DEVICE = re.compile(r"device ordinal ([0-9]{1,4})|GPU:([0-9]{1,4})|GPU_([0-9]{1,4})_bfc")


_HOST = re.compile(
    r"Allocator \(\w{0,20}host\w{0,20}\)|by allocator \w{0,20}(?:cpu|host)"
    r"|(?:type \w{1,20} on /|__wrapped__)\S{0,160}device:CPU:[0-9]"
)


def read_message(line: Line) -> Oom | None:
    if is_of_host(line.text):
        return None
    for form in FORMS:
        found = form.pattern.search(line.text)
        if found is not None:
            return Oom(line.number, line.source, device_in(line.text), form.facts(found))
    return None


def device_in(text: str) -> int | None:
    found = _DEVICE.search(text)
    return None if found is None else int(next(filter(None, found.groups())))


def is_of_host(text: str) -> bool:
    """TensorFlow has allocators of the host's memory, whose errors read the same."""
    return _HOST.search(text) is not None
