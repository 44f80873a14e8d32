"""The BFC allocator's dump and the errors after it; errors of JAX and TensorFlow without a dump."""

import re
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfc_text import JAX, LEVEL, dump
from gpufrag.model.verdict import Cause, judge
from gpufrag.oom_log import Oom, read_log
from helpers import TESTS

MIB, GIB = 1 << 20, 1 << 30
FIXTURES = TESTS / "oom_log" / "fixtures"
TENSOR = (
    "OOM when allocating tensor with shape[4096,4096] and type float on /job:localhost/task:0/device:GPU:0 by GPU_0_bfc"
)


def read(lines: Iterable[str]) -> list[Oom]:
    return list(read_log([f"{line}\n".encode() for line in lines]))


@pytest.mark.parametrize(("name", "allocator"), [("tensorflow-dump", "tensorflow"), ("jax-dump", "jax")])
def test_dump_and_its_errors_are_one(name: str, allocator: str) -> None:
    (found,) = read((FIXTURES / f"{name}.log").read_text().splitlines())
    facts = found.facts
    assert (found.line, found.device, facts.allocator, found.missing) == (1, 0, allocator, ())
    assert (facts.free_total, facts.largest_free_block, facts.limit) == (120 * MIB, 40 * MIB, 320 * MIB)
    assert judge(facts).cause is Cause.FRAGMENTATION


sizes = st.integers(1, 1 << 12).map(lambda blocks: blocks * 256)


@given(used=st.lists(sizes, min_size=1, max_size=9), free=st.lists(sizes, max_size=9), need=sizes)
def test_dump_totals_are_exact(used: list[int], free: list[int], need: int) -> None:
    total = sum(used) + sum(free)
    (found,) = read(dump(need, used, free, limit=total))
    facts = found.facts
    assert (facts.free_cached, facts.largest_free_block) == (sum(free), max(free, default=0))
    expected = Cause.CAPACITY if need > sum(free) else Cause.FRAGMENTATION if need > max(free) else Cause.UNKNOWN
    assert judge(facts).cause is expected


def test_pool_that_could_grow_is_unknown() -> None:
    (found,) = read(dump(64 * MIB, [50 * MIB], [20 * MIB], limit=GIB))
    verdict = judge(found.facts)
    assert verdict.cause is Cause.UNKNOWN
    assert "driver" in verdict.missing[0]


def test_incomplete_dump_is_not_used() -> None:
    lines = [
        line for line in dump(64 * MIB, [50 * MIB, 9 * MIB], [40 * MIB, 40 * MIB], 140 * MIB) if " 9437184 " not in line
    ]
    (found,) = read(lines)
    assert found.facts.largest_free_block is None
    assert "mixed with another" in found.missing[0]
    assert found.facts.limit == 140 * MIB


def test_interleaved_dumps_of_marked_ranks_are_separate() -> None:
    first, second = (dump(64 * MIB, [50 * MIB], [n * MIB], (50 + n) * MIB, device=n - 60) for n in (60, 61))
    mixed = [line for a, b in zip(first, second) for line in (f"[rank0]: {a}", f"[rank1]: {b}")]
    found = read(mixed)
    assert [(oom.source, oom.facts.free_cached) for oom in found] == [("rank0", 60 * MIB), ("rank1", 61 * MIB)]
    assert len(read(line.split(": ", 1)[1] for line in mixed)) == 2


def marked(lines: Iterable[str], thread: int) -> Iterator[str]:
    """As absl logs: the first line of each call has its thread, the statistics have none."""
    call: list[str] = []
    for line in lines:
        if call and LEVEL in line:
            yield "\n".join(call)
            call = []
        call.append(re.sub(f"{LEVEL}[IW] ", f"I0000 00:00:1714900000.000001 {thread:>7} ", line))
    yield "\n".join(call)


@pytest.mark.parametrize("prefix", ["", "[rank4]: "])
def test_interleaved_dumps_of_threads_are_separate(prefix: str) -> None:
    first, second = (dump(64 * MIB, [50 * MIB], [n * MIB], (50 + n) * MIB, JAX, n - 60) for n in (60, 61))
    pairs = zip(marked(first, 4242), marked(second, 4343))
    lines = [f"{prefix}{line}" for pair in pairs for call in pair for line in call.split("\n")]
    assert [oom.facts.free_cached for oom in read(lines)] == [60 * MIB, 61 * MIB]


def test_dump_between_other_lines_is_read() -> None:
    lines = [text for line in dump(64 * MIB, [50 * MIB], [60 * MIB], 110 * MIB) for text in (line, "step 7 loss 0.1")]
    assert [oom.facts.free_cached for oom in read(lines)] == [60 * MIB]


RAN_OUT = "out of memory trying to allocate 2.00GiB.  See logs for memory state"


@pytest.mark.parametrize(
    ("line", "framework"),
    [
        (f"W tensorflow/core/common_runtime/bfc_allocator.cc:213] Ran {RAN_OUT}", "tensorflow"),
        (f"W tensorflow/core/common_runtime/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran {RAN_OUT}", "tensorflow"),
        (f"W external/local_tsl/tsl/framework/bfc_allocator.cc:1] Allocator (GPU_0_bfc) ran {RAN_OUT}", "tensorflow"),
        (f"W external/local_xla/xla/tsl/bfc_allocator.cc:1] Allocator (GPU_0_bfc) ran {RAN_OUT}", "tensorflow"),
        (f"W external/xla/xla/tsl/framework/bfc_allocator.cc:1] Allocator (GPU_0_bfc) ran {RAN_OUT}", "jax"),
        (f"W external/org_tensorflow/tensorflow/bfc_allocator.cc:1] Allocator (GPU_0_bfc) ran {RAN_OUT}", "jax"),
        ("tensorflow.python.errors_impl.ResourceExhausted: Out of memory allocating 2147483648 bytes.", "tensorflow"),
        ("XlaRuntimeError: Out of memory while trying to allocate 2147483648 bytes.", "jax"),
    ],
)
def test_framework_is_that_of_the_path_or_exception(line: str, framework: str) -> None:
    (found,) = read([line])
    assert (found.facts.allocator, found.facts.requested) == (framework, 2 * GIB)


def test_harmless_attempt_is_no_error() -> None:
    text = "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.02GiB with freed_by_count=0."
    assert read([f"{text} The caller indicates that this is not a failure, but may mean"]) == []
    assert len(read([text])) == 1


CAPACITY = "Attempting to allocate 2.00G. That was not possible. There are 1.50G free.; (0x0x0_HBM0)"
RESERVE = "Attempting to reserve 1.00G at the bottom of memory. That was not possible. There are 1.50G free, 0B"
PROGRAM = "Ran out of memory in memory space hbm. Used 18.00G of 15.50G hbm. Exceeded hbm capacity"


@pytest.mark.parametrize(
    ("line", "cause", "requested"),
    [
        (CAPACITY, Cause.CAPACITY, 2 * GIB),
        (RESERVE, Cause.FRAGMENTATION, GIB),
        (PROGRAM, Cause.CAPACITY, 18 * GIB),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.", Cause.UNKNOWN, 2 * GIB),
        ("Resource exhausted: Out of memory allocating 2,147,483,648 bytes.", Cause.UNKNOWN, 2 * GIB),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2.00GiB.", Cause.UNKNOWN, 2 * GIB),
        ("Failed to allocate request for 2.0GiB (2147483900B) on device ordinal 3", Cause.UNKNOWN, 2147483900),
        ("RESOURCE_EXHAUSTED: Failed to allocate 2147483648 bytes for new constant", Cause.UNKNOWN, 2 * GIB),
        (TENSOR, Cause.UNKNOWN, 64 * MIB),
        (TENSOR.replace("type float", "type half"), Cause.UNKNOWN, 32 * MIB),
        (TENSOR.replace("type float", "type complex64"), Cause.UNKNOWN, 128 * MIB),
        (TENSOR.replace("type float", "type resource"), Cause.UNKNOWN, None),
        (TENSOR.replace("4096,4096", ""), Cause.UNKNOWN, 4),
        (TENSOR.replace("with shape", "of shape "), Cause.UNKNOWN, 64 * MIB),
        (TENSOR.replace("tensor", "temporary tensor"), Cause.UNKNOWN, 64 * MIB),
        ("Compute status: Resource exhausted: OOM when allocating tensor with shape", Cause.UNKNOWN, None),
        ("copying from device:CPU:0 to device:GPU:0: Dst tensor is not initialized.", Cause.UNKNOWN, None),
        ("errors_impl.ResourceExhaustedError: failed to allocate memory [Op:Mul]", Cause.UNKNOWN, None),
        (f"ResourceExhaustedError: {{{{node {'x' * 100}}}}} failed to allocate memory [Op:Mul]", Cause.UNKNOWN, None),
    ],
)
def test_error_without_dump(line: str, cause: Cause, requested: int | None) -> None:
    (found,) = read([line])
    assert (found.facts.requested, judge(found.facts).cause) == (requested, cause)


def test_next_step_is_the_frameworks() -> None:
    (alone,) = read(["Failed to allocate request for 2.0GiB (2147483648B) on device"])
    (dumped,) = read(dump(64 * MIB, [50 * MIB], [40 * MIB, 40 * MIB], 130 * MIB, JAX))
    assert "TF_CPP_MIN_LOG_LEVEL" in judge(alone.facts).next_step
    assert "XLA_PYTHON_CLIENT" in judge(dumped.facts).next_step


@pytest.mark.parametrize(
    "line",
    [
        TENSOR.replace("GPU:0 by GPU_0_bfc", "CPU:0 by allocator cpu"),
        TENSOR.replace("GPU:0 by GPU_0_bfc", "CPU:0 by allocator mklcpu"),
        "ResourceExhaustedError: {{node __wrapped__Mul_device_/job:x/device:CPU:0}} failed to allocate memory [Op:Mul]",
        "Allocator (cuda_host_bfc) ran out of memory trying to allocate 3.72GiB.  Current allocation summary follows.",
        "failed to allocate 7.81G (8387559424 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "failed to alloc 8387559424 bytes unified memory; result: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    ],
)
def test_host_memory_and_growing_pools_are_no_errors(line: str) -> None:
    assert read([line]) == []


def test_cudamallocasync_of_tensorflow_is_read() -> None:
    lines = [
        "E1103 gpu_cudamallocasync_allocator.cc:361] gpu_async_3 cuMemAllocAsync failed to allocate 2147483648 bytes: "
        "RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        " Reported by CUDA: Free memory/Total memory: 1073741824/85899345920",
        "E1103 gpu_cudamallocasync_allocator.cc:366] Stats: Limit:                               0",
        "InUse:                     64424509440",
    ]
    (found,) = read(lines)
    facts = found.facts
    assert (found.device, facts.requested, facts.driver_free, facts.size) == (3, 2 * GIB, GIB, 80 * GIB)
    assert facts.allocated == 60 * GIB
    assert judge(facts).evidence[0].startswith("19.0 GiB of the device is neither free nor live")


NEXT_DEVICE = "RESOURCE_EXHAUSTED: Failed to allocate request for 2.0GiB (2147483648B) on device ordinal {}"
FIRST, SECOND = (list(dump(64 * MIB, [50 * MIB], [n * MIB], 200 * MIB)) for n in (60, 61))


@pytest.mark.parametrize(
    ("lines", "errors"),
    [
        ([*FIRST, "Resource exhausted: OOM when allocating tensor with shape[1000,1000]"], 1),
        ([*FIRST, TENSOR, *SECOND, TENSOR], 2),
        ([NEXT_DEVICE.format(0), NEXT_DEVICE.format(1), NEXT_DEVICE.format(0)], 2),
        ([TENSOR, TENSOR.replace("4096,4096", "4096,2048"), TENSOR], 2),
    ],
    ids=["shape without type", "two dumps", "two devices", "two sizes"],
)
def test_copies_count_once(lines: list[str], errors: int) -> None:
    assert len(read(lines)) == errors
