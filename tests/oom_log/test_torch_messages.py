"""Torch's message in every version, whole, wrapped or cut off, and its figures; sizes as logs print them."""

import re
from textwrap import wrap

import pytest

from gpufrag.model.verdict import Cause, judge
from gpufrag.oom_log import Oom, read_log
from gpufrag.oom_log.messages import SIZE, read_size

MIB, GIB = 1 << 20, 1 << 30
NEW = (
    "CUDA out of memory. Tried to allocate {need}. GPU 0 has a total capacity of 16.00 GiB of which {free} is free. "
    "{processes}Of the allocated memory 14.00 GiB is allocated by PyTorch, {rest}."
)


def read(lines: list[str]) -> list[Oom]:
    return list(read_log(f"{line}\n".encode() for line in lines))


def only(text: str) -> Oom:
    (found,) = read(text.split("\n"))
    return found


def new(need: str = "2.00 GiB", free: str = "8.00 MiB", processes: str = "", unallocated: str = "512.00 MiB") -> str:
    rest = f"and {unallocated} is reserved by PyTorch but unallocated"
    return NEW.format(need=need, free=free, processes=processes, rest=rest)


BEYOND_SEGMENT = (  # torch 2.15 over tests/fake_cuda, with expandable_segments_reserve:1.5G
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 78.47 GiB is "
    "free. Including non-PyTorch memory, this process has 1.53 GiB memory in use. Of the allocated memory 1024.00 MiB "
    "is allocated by PyTorch, and 16.00 MiB is reserved by PyTorch but unallocated. This allocation exceeds the "
    "expandable-segment reserve of 1.50 GiB for this stream, and a single allocation cannot span expandable segments."
)
OLDEST = (
    "RuntimeError: CUDA out of memory. Tried to allocate 6.00 GiB (GPU 0; 12.00 GiB total capacity; 9.00 GiB already "
    "allocated; 1.50 GiB free; 179.00 KiB cached)"
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 7; 16.00 GiB total capacity; 11.00 GiB already "
    "allocated; 38.50 MiB free; 15.00 GiB reserved in total by PyTorch)"
)
HIP = (
    "HIP out of memory. Tried to allocate 2.00 GiB (GPU 1; 64.00 GiB total capacity; 19.50 GiB already allocated; "
    "44.00 GiB free; 20.00 GiB allowed; 20.00 GiB reserved in total by PyTorch)"
)
XPU = (
    "XPU out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 12.00 GiB of which 3.00 GiB is free. "
    "Of the allocated memory 8.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
)
OLD_XPU = (
    "XPU out of memory. Tried to allocate 9.00 GiB (GPU 0; 16.00 GiB total capacity; 8.00 GiB already allocated; "
    "8.00 GiB reserved in total by PyTorch)"
)
NPU = (
    "NPU out of memory. Tried to allocate 64.00 MiB (NPU 3; 60.00 GiB total capacity; 50.00 GiB already allocated; "
    "50.00 GiB current active; 4.00 MiB free; 52.00 GiB reserved in total by PyTorch)"
)
MPS = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 5.50 GB, other allocations: 1.00 GB, max allowed: 6.75 "
    "GB). Tried to allocate 768.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0"
)
REJECTED = (
    "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. "
    "Requested size: 2.00 GiB"
)
FREE = new(free="6.00 GiB")


@pytest.mark.parametrize(
    ("text", "cause", "requested", "device"),
    [
        (OLDEST, Cause.CAPACITY, 6 * GIB, 0),
        (OLD, Cause.FRAGMENTATION, 2 * GIB, 7),
        (HIP, Cause.LIMIT, 2 * GIB, 1),
        (XPU, Cause.CAPACITY, 4 * GIB, 0),
        (OLD_XPU, Cause.CAPACITY, 9 * GIB, 0),
        (NPU, Cause.FRAGMENTATION, 64 * MIB, 3),
        (MPS, Cause.LIMIT, 768 * MIB, None),
        (REJECTED, Cause.LIMIT, 2 * GIB, None),
        (new().replace("capacity", "capacty"), Cause.CAPACITY, 2 * GIB, 0),
        (new("256.00 MiB"), Cause.FRAGMENTATION, 256 * MIB, 0),
        (new().replace("GPU 0", "GPU \x00"), Cause.CAPACITY, 2 * GIB, 0),
        (new().replace("GPU 0", "GPU "), Cause.CAPACITY, 2 * GIB, None),
        (new(processes="10.00 GiB allowed; "), Cause.CAPACITY, 2 * GIB, 0),
        (new(free="6.00 GiB", processes="14.75 GiB allowed; ").replace("16.00", "24.00"), Cause.LIMIT, 2 * GIB, 0),
        (FREE.replace("16.00", "24.00"), Cause.UNKNOWN, 2 * GIB, 0),
        (f"torch.OutOfMemoryError: {FREE}".replace("14.00", "8.00"), Cause.UNKNOWN, 2 * GIB, 0),
        (FREE, Cause.UNKNOWN, 2 * GIB, 0),
        ("CUDA out of memory. Tried to allocate more than 1EB memory.", Cause.CAPACITY, 1 << 60, None),
        ("alloc_buffer: allocating 4096.00 MiB: cudaMalloc failed: out of memory", Cause.UNKNOWN, 4 * GIB, None),
        ("Failed to CUDA calloc async 608 bytes: Cuda failure 2 'out of memory'", Cause.UNKNOWN, 608, None),
        ("allocating 64.00 MiB on device 3: hipMalloc failed: out of memory", Cause.UNKNOWN, 64 * MIB, 3),
    ],
)
def test_form_gives_verdict_and_figures(text: str, cause: Cause, requested: int | None, device: int | None) -> None:
    found = only(text)
    assert (judge(found.facts).cause, found.facts.requested, found.device) == (cause, requested, device)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA failed with error out of memory",
        "ncclInternalError: Cuda failure 2 'out of memory'",
        "RuntimeError: cuda runtime error (2) : out of memory at /torch/THCStorage.cu:58",
        "THCudaCheck FAIL file=/torch/THCStorage.cu line=58 error=2 : out of memory",
        "[saver.cpp] cudaError error: 2 (out of memory)  file=core.cpp",
        "cuda failed with error 2 out of memory. use CUDA_LAUNCH_BLOCKING=1",
        "RuntimeError: HIP error: HIPBLAS_STATUS_ALLOC_FAILED",
        "RuntimeError: UR error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "torch.OutOfMemoryError: Allocation on device ",
        'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "C.cpp":9',
    ],
)
def test_form_without_figures_is_unknown(text: str) -> None:
    found = only(text)
    assert (judge(found.facts).cause, found.facts.requested, found.device) == (Cause.UNKNOWN, None, None)


def test_longest_form_has_every_figure() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 80.00 "
        "GiB of which 1.00 GiB is free. Process 77 has 1.50 GiB memory in use. Including non-PyTorch memory, this "
        "process has 77.00 GiB memory in use. 78.00 GiB allowed; Of the allocated memory 74.00 GiB is allocated by "
        "PyTorch, with 512.00 MiB allocated in private pools (e.g., CUDA Graphs), and 1.50 GiB is reserved by "
        "PyTorch but unallocated."
    )
    facts = only(text).facts
    assert (facts.driver_free, facts.size, facts.limit) == (GIB, 80 * GIB, 78 * GIB)
    assert (facts.reserved, facts.allocated, facts.captive) == (75 * GIB + 512 * MIB, 73 * GIB + 512 * MIB, 512 * MIB)
    assert (facts.free_cached, facts.others) == (GIB + 512 * MIB, GIB + 512 * MIB)
    assert facts.precision == GIB // 200


@pytest.mark.parametrize(
    ("text", "platform"),
    [
        (new(), "cuda"),
        (new().replace("CUDA", "HIP"), "hip"),
        (new().replace("CUDA", "XPU"), "xpu"),
        (new().replace("CUDA", "NPU").replace("GPU", "NPU"), "npu"),
        ("hipErrorOutOfMemory", "hip"),
        ("UR error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "xpu"),
        ("RuntimeError: CUDA error: out of memory", "cuda"),
    ],
)
def test_platform_is_that_of_the_message(text: str, platform: str) -> None:
    assert only(text).facts.platform == platform


def test_mps_allocations_are_added() -> None:
    facts = only(MPS).facts
    assert (facts.allocated, facts.limit) == (13 * GIB // 2, 27 * GIB // 4)
    assert only(MPS.replace("other allocations", "others")).facts.allocated is None


def test_listed_processes_are_neighbours() -> None:
    own = "Including non-PyTorch memory, this process has 6.90 GiB memory in use. "
    text = new(processes=f"Process 77 has 9.00 GiB memory in use. {own}").replace("14.00 GiB is", "6.00 GiB is")
    assert judge(only(text).facts).cause is Cause.NEIGHBOURS


@pytest.mark.parametrize(
    ("processes", "others"),
    [
        ("", None),
        ("Process 77 has 1.00 GiB memory in use. Process 78 has 14.80 GiB memory in use. ", GIB),  # one is itself
        ("Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. ", None),
    ],
)
def test_other_processes_are_known_or_absent(processes: str, others: int | None) -> None:
    facts = only(new(processes=processes)).facts
    assert (facts.others, facts.limit) == (others, None)


def test_expandable_segments_in_text_are_recorded() -> None:
    assert only(new() + " expandable_segments is enabled. If instead").facts.expandable is True
    assert only(new()).facts.expandable is None


def test_several_messages_in_one_json_line() -> None:
    line = '{"error": "' + new() + '", "cause": "' + new("1.00 GiB") + '"}\n'
    assert [oom.facts.requested for oom in read_log([line.encode()])] == [2 * GIB, GIB]


def test_cudamallocasync_table_is_read() -> None:
    text = (
        "Allocation on device 5 would exceed allowed memory. (out of memory)\nCurrently allocated     : 54.00 GiB\n"
        "Requested               : 686.50 MiB\nDevice limit            : 79.00 GiB\n"
        "Free (according to CUDA): 27.25 MiB\n"
        "PyTorch limit (set by user-supplied memory fraction)\n                        : {} GiB\n"
    )
    facts = only(text.format("54.50")).facts
    assert (facts.requested, facts.limit, facts.size) == (686 * MIB + MIB // 2, 54 * GIB + GIB // 2, 79 * GIB)
    assert only(text.format("17179869184.00")).facts.limit == 79 * GIB
    assert only(text.replace("\n", "\\n").format("54.50")).facts == facts
    assert only(text.replace("\n", " ").format("54.50")).facts == facts


@pytest.mark.parametrize(
    "text",
    [
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147483648 bytes.",
        "numpy.core._exceptions.MemoryError: Unable to allocate 2.00 GiB for an array",
        '    raise RuntimeError(f"CUDA out of memory. Tried to allocate {size}")',
        "memory allocation failed with OOM on device 0 while trying to allocate 2097152 bytes (free: 1, total: 2).",
        "Out of memory: Killed process 4242 (python3) total-vm:1kB",
        "all is well",
    ],
)
def test_other_text_is_no_error(text: str) -> None:
    assert list(read_log([text.encode()])) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2.00 GiB", 2 << 30),
        ("2147483648 bytes", 2 << 30),
        ("2,147,483,648 bytes", 2 << 30),
        ("3206B", 3206),
        ("1.50G", 3 << 29),
        ("2 GB", 2_000_000_000),
    ],
)
def test_size_is_read(text: str, size: int) -> None:
    assert read_size(re.fullmatch(SIZE, text)[1]).bytes == size


@pytest.mark.parametrize("text", ["2,5 GiB", "12,34 MiB", "1.2.3 GiB", "-GiB", "lots", "1,2345 KiB"])
def test_broken_size_is_not_read_in_part(text: str) -> None:
    assert re.search(SIZE, text) is None


# --- wrapped by terminals and traceback printers, or cut off

WHOLE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 "
    "GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.89 GiB memory in use. 78.50 "
    "GiB allowed; Of the allocated memory 70.00 GiB is allocated by PyTorch, with 64.00 MiB allocated in private "
    "pools (e.g., CUDA Graphs), and 6.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


def terminal(text: str, width: int) -> list[str]:
    """In the middle of words."""
    return [text[start : start + width] for start in range(0, len(text), width)]


def box(text: str, width: int) -> list[str]:
    return [f"│ {line:<{width}} │" for line in wrap(text, width)]


def launcher(text: str, width: int) -> list[str]:
    """Each line has the rank before it."""
    return [f"[rank3]: {line}" for line in wrap(text, width)]


@pytest.mark.parametrize("width", [64, 72, 80, 100, 132])
@pytest.mark.parametrize("printer", [terminal, wrap, box, launcher])
def test_message_wrapped_at_any_width_is_the_same(printer, width: int) -> None:
    (whole,), (wrapped,) = read([WHOLE]), read([*printer(WHOLE, width), "and the log goes on"])
    assert (wrapped.facts, wrapped.device) == (whole.facts, whole.device)


def sentences(text: str) -> list[str]:
    return re.sub(r"(?<=[.;]) (?=[A-Z])", "\n", text).split("\n")


@pytest.mark.parametrize("mark", ["", "[rank1]: ", "3: ", "worker | "])
def test_message_with_a_line_per_sentence_is_the_same(mark: str) -> None:
    lines = [mark + line for line in sentences(WHOLE)]
    assert lines[0].endswith("CUDA out of memory.")
    (whole,), (broken,) = read([WHOLE]), read([*lines, "and the log goes on"])
    assert (broken.line, broken.facts, broken.device) == (1, whole.facts, whole.device)


@pytest.mark.parametrize(
    "line",
    ["CUDA out of memory. Tried to allocate 2.0", "HIP out of memory. Tried", "OutOfMemoryError: XPU out of memory."],
)
def test_message_cut_off_before_its_size_hides_no_other(line: str) -> None:
    first, second = read([line, "Traceback (most recent call last):", WHOLE])
    assert (first.line, first.facts.requested, second.line) == (1, None, 3)


def test_program_that_mentions_an_error_has_none() -> None:
    assert read(["caught: CUDA out of memory. Retrying with half the batch", "if 'CUDA out of memory' in text:"]) == []


def test_request_beyond_an_expandable_segment_hit_a_limit() -> None:
    facts = only(BEYOND_SEGMENT).facts
    verdict = judge(facts)
    assert (facts.segment_space, verdict.cause) == (1536 * MIB, Cause.LIMIT)
    assert "an expandable segment has 1.50 GiB" in verdict.evidence[0]
    assert verdict.next_step.startswith("raise expandable_segments_reserve")
