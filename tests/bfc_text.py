"""The BFC allocator's dump as text, of any chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

TENSORFLOW = "tensorflow/core/common_runtime/bfc_allocator.cc"
JAX = "external/xla/xla/tsl/framework/bfc_allocator.cc"
LEVEL = "2024-05-05 10:00:00.000001: "


def dump(
    need: int, used: Sequence[int], free: Sequence[int], limit: int, path: str = TENSORFLOW, device: int = 0
) -> Iterator[str]:
    """Alternate used and free chunks while there are both."""
    at = f"{LEVEL}I {path}:1095] "
    yield (
        f"{LEVEL}W {path}:497] Allocator (GPU_{device}_bfc) ran out of memory trying to allocate {need / 2**20:.2f}MiB "
        f"(rounded to {need})requested by op dense/MatMul"
    )
    yield "Current allocation summary follows."
    yield f"{at}BFCAllocator dump for GPU_{device}_bfc"
    yield f"{at}Bin (256): \tTotal Chunks: 2, Chunks in use: 2. 512B allocated for chunks."
    yield f"{at}Next region of size {sum(used) + sum(free)}"
    yield from (f"{at}InUse at 7f3a0000{index:04x} of size {size} next {index}" for index, size in enumerate(used))
    yield from (f"{at}Free  at 7f3b0000{index:04x} of size {size} next {index}" for index, size in enumerate(free))
    yield f"{at}Sum Total of in-use chunks: {sum(used) / 2**20:.2f}MiB"
    yield f"{at}Stats: "
    yield f"Limit:           {limit:>20}"
    yield f"InUse:           {sum(used):>20}"
    yield f"MaxInUse:        {sum(used):>20}"
    yield f"NumAllocs:       {7:>20}"
    yield f"MaxAllocSize:    {max(used, default=0):>20}"
    yield ""
    yield f"{LEVEL}W {path}:491] ****____****"
