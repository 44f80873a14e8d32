"""The other alerts about memory: when they fire, with which text, and when they must not."""

import pytest

from promtool import GIB, Case, Firing, device

MIB = 1 << 20
WHO = "Job llm: rank 0, device 0, pod llm-0, 10.0.0.1:9836"


def allocatable(gib: float, at: str) -> dict[str, str]:
    return device("gpufrag_allocator_largest_allocatable_bytes", GIB * gib, at=at)


def recurring(gib: float) -> dict[str, str]:
    return device("gpufrag_allocator_largest_recurring_bytes", GIB * gib)


NEXT_FAILS = Firing(
    f"{WHO} asks for 6GiB again and again, and at no moment of the last 2m could more than 5GiB be had. "
    "Save a checkpoint now; then lower the batch or the sequence length, or restart."
)
PARAMETER = device("gpufrag_allocator_largest_active_block_bytes", 20 * GIB, pool="large", at="boundary")
WANDERS = " ".join(f"{GIB * gib}" for gib in 20 * (1, 5))
BLINKING = " ".join(f"{5 * GIB} stale" for _ in range(60))

NEXT_REQUEST = [
    Case("GpuMemoryNextRequestWillFail", "too little at every moment", "7m",
         [allocatable(5, "boundary"), allocatable(1, "peak"), recurring(6)], NEXT_FAILS),
    Case("GpuMemoryNextRequestWillFail", "though every other scrape fails", "7m",
         [device("gpufrag_allocator_largest_allocatable_bytes", BLINKING, at="boundary"), recurring(6)], NEXT_FAILS),
    Case("GpuMemoryNextRequestWillFail", "and tells the best of several moments, of those that count", "7m",
         [device("gpufrag_allocator_largest_allocatable_bytes", WANDERS, at="boundary"), allocatable(7, "peak"),
          recurring(6)], NEXT_FAILS),
    Case("GpuMemoryNextRequestWillFail", "the block itself is what is missing at the peak", "30m",
         [allocatable(10, "boundary"), allocatable(1, "peak"), recurring(6)]),
    Case("GpuMemoryNextRequestWillFail", "the one big block is a parameter", "30m",
         [allocatable(5, "boundary"), PARAMETER, recurring(0.5)]),
    Case("GpuMemoryNextRequestWillFail", "nothing recurs", "30m", [allocatable(5, "boundary"), PARAMETER]),
]  # fmt: skip


def share(free: float | str, at: str = "peak") -> list[dict[str, str]]:
    values = free if isinstance(free, str) else GIB * free
    total = device("gpufrag_allocator_free_total_bytes", values, at=at)
    return [total, device("gpufrag_allocator_limit_bytes", 80 * GIB)]


NOW_AND_THEN = [f"{2 * GIB}", *[f"{40 * GIB}"] * 9]
FULL = Firing(
    f"{WHO} (at: peak) had 2GiB left, 2.5% of its limit. The device is full, not fragmented: a restart changes "
    "nothing; a smaller batch does, or leave it if the job was sized so."
)
TIGHT = [
    Case("GpuMemoryTight", "2 of 80 GiB left", "17m", share(2), FULL),
    Case("GpuMemoryTight", "again and again", "20m", share(" ".join([f"{2 * GIB}", f"{40 * GIB}"] * 30)), FULL),
    Case("GpuMemoryTight", "not for long enough", "14m", share(2)),
    Case("GpuMemoryTight", "full once in five minutes", "30m", share(" ".join(NOW_AND_THEN * 6))),
    Case("GpuMemoryTight", "half of it left", "30m", share(40)),
]  # fmt: skip

RETRIES = "gpufrag_allocator_alloc_retries_total"
FLUSHES = Firing(
    f"{WHO} flushes 4 times a minute. Compare the step time before and after; lower the peak, or raise the limit."
)
THRASHING = [
    Case("GpuAllocatorThrashing", "two each half minute", "16m", [device(RETRIES, "0+2x120")], FLUSHES),
    Case("GpuAllocatorThrashing", "over a restart of the rank", "20m", [device(RETRIES, "90+2x20 0+2x60")], FLUSHES),
    Case("GpuAllocatorThrashing", "a burst at start-up", "20m", [device(RETRIES, "0+10x4 40+0x100")]),
    Case("GpuAllocatorThrashing", "the counter began anew", "20m", [device(RETRIES, "90+0x30 0+0x60")]),
]  # fmt: skip

OOMS, OOM_TIME = "gpufrag_allocator_ooms_total", "gpufrag_oom_last_timestamp_seconds"
CALM = "A job that caught the error goes on. Was as much free as it asked for? Then it is fragmentation."
EXPLAINED = [
    device(OOM_TIME, "_x20 590+0x100"),
    device("gpufrag_oom_last_requested_bytes", f"_x20 {3 * GIB}+0x100"),
    device("gpufrag_oom_causes_total", "_x20 1+0x100", cause="fragmentation"),
]
OUT_OF_MEMORY = [
    Case("GpuMemoryOutOfMemory", "the counter rose", "12m", [device(OOMS, "0+0x20 1+0x100")],
         Firing(f"Job llm: out of memory within the last 10m. {CALM}")),
    Case("GpuMemoryOutOfMemory", "the first scrape of a process already tells of one", "11m", EXPLAINED,
         Firing(f"Job llm: out of memory within the last 10m. {WHO.removeprefix('Job llm: ')} asked for 3GiB. "
                f"Cause fragmentation: 1 so far. {CALM}")),
    Case("GpuMemoryOutOfMemory", "it was long ago", "20m", EXPLAINED),
    Case("GpuMemoryOutOfMemory", "the counter stands still", "12m", [device(OOMS, 5)]),
    Case("GpuMemoryOutOfMemory", "the counter began anew", "12m", [device(OOMS, "5+0x20 0+0x100")]),
]  # fmt: skip


GONE = [
    device(OOM_TIME, "_x20 590+0x2 stale"),
    device("gpufrag_oom_last_requested_bytes", f"_x20 {3 * GIB}+0x2 stale"),
    device("gpufrag_oom_causes_total", "_x20 1+0x2 stale", cause="capacity"),
]
OUT_OF_MEMORY += [
    Case("GpuMemoryOutOfMemory", "the process and its pod are gone", "18m", GONE,
         Firing(f"Job llm: out of memory within the last 10m. {WHO.removeprefix('Job llm: ')}. "
                f"Cause capacity: 1 so far. {CALM}")),
    Case("GpuMemoryOutOfMemory", "it was long ago, and nothing is left of it", "20m", GONE),
    Case("GpuMemoryOutOfMemory", "nobody knows how much was asked for", "11m", EXPLAINED[:1],
         Firing(f"Job llm: out of memory within the last 10m. {WHO.removeprefix('Job llm: ')}. {CALM}")),
]  # fmt: skip


def leak(per_step: str | float, steps: str = "0+60x120") -> list[dict[str, str]]:
    """Two steps a second, by default, with 40 GiB left."""
    return [
        device("gpufrag_leak_bytes_per_step", per_step),
        device("gpufrag_steps_total", steps, device=""),
        device("gpufrag_allocator_free_total_bytes", 40 * GIB, at="peak"),
        device("gpufrag_allocator_free_total_bytes", 60 * GIB, at="boundary"),
    ]


KEPT = (
    "Look for tensors that are kept with their graph (a loss that is added up, a list of outputs), or for a cache "
    "without a bound."
)


def growing(keeps: str, full: str = "2h 50m 40s", rank: str = "0") -> Firing:
    told = f"rank {rank}, pod llm-0, 10.0.0.1:9836 keeps {keeps}; at this pace the memory is full in {full}"
    return Firing(f"Job llm: {told}. {KEPT}")


SERVING = [
    device("gpufrag_leak_bytes_per_second", 4 * MIB, rank="", process="4711"),
    device("gpufrag_allocator_free_total_bytes", 40 * GIB, at="timer", rank="", process="4711"),
]
SECOND_FRAMEWORK = [
    device("gpufrag_leak_bytes_per_step", 2 * MIB, framework="jax"),
    device("gpufrag_steps_total", "0+60x120", device=""),
    device("gpufrag_allocator_free_total_bytes", 40 * GIB, at="timer", framework="jax"),
    device("gpufrag_allocator_free_total_bytes", 60 * GIB, at="peak"),
]
FREE_BESIDE_IT = [
    device("gpufrag_leak_bytes_per_step", 2 * MIB, framework="tensorflow"),
    device("gpufrag_steps_total", "0+60x120", device=""),
    device("gpufrag_allocator_free_total_bytes", 40 * GIB, at="peak"),
    device("gpufrag_allocator_free_total_bytes", GIB, at="peak", device="1"),
]
BOTH = [*SECOND_FRAMEWORK, device("gpufrag_leak_bytes_per_second", 8 * MIB, framework="tensorflow")]
BY_THE_SECOND_ALONE = [
    device("gpufrag_leak_bytes_per_step", 0),
    device("gpufrag_leak_bytes_per_second", 4 * MIB, framework="tensorflow"),
    *FREE_BESIDE_IT[1:],
]
LEAK = [
    Case("GpuMemoryLeakSuspected", "full within three hours", "25m", leak(2 * MIB),
         growing("2MiB more after each step")),
    Case("GpuMemoryLeakSuspected", "it serves, and takes no steps", "25m", SERVING,
         growing("4MiB more each second", rank="4711")),
    Case("GpuMemoryLeakSuspected", "in the second framework of a process", "25m", SECOND_FRAMEWORK,
         growing("2MiB more after each step")),
    Case("GpuMemoryLeakSuspected", "in a framework that does not tell what is free, of its device alone", "25m",
         FREE_BESIDE_IT, growing("2MiB more after each step")),
    Case("GpuMemoryLeakSuspected", "by the step and, faster, by the second", "25m", BOTH,
         growing("2MiB more after each step; 8MiB more each second", full="1h 25m 20s")),
    Case("GpuMemoryLeakSuspected", "by the second, beside a framework that steps and does not", "25m",
         BY_THE_SECOND_ALONE, growing("4MiB more each second")),
    Case("GpuMemoryLeakSuspected", "it serves, and nothing grows", "25m", [line | {"values": "0+0x120"} if "leak" in
         line["series"] else line for line in SERVING]),
    Case("GpuMemoryLeakSuspected", "too slow to matter", "40m", leak(1024)),
    Case("GpuMemoryLeakSuspected", "memory shrinks", "40m", leak(f"{-2 * MIB}+0x120")),
    Case("GpuMemoryLeakSuspected", "no step is taken", "40m", leak(2 * MIB, steps="500+0x120")),
    Case("GpuMemoryLeakSuspected", "the count of steps began anew", "25m", leak(1024, steps="900000+60x20 0+60x90")),
]  # fmt: skip


def others(values: str | float) -> list[dict[str, str]]:
    return [device("gpufrag_device_other_processes_memory_used_bytes", values, rank="", uuid="GPU-1")]


FOREIGN = [
    Case("GpuMemoryForeignProcess", "5 GiB for long", "20m", others(5 * GIB), Firing(
        "Job llm: device 0 (GPU-1), 10.0.0.1:9836: 5GiB are held by processes without an agent. nvidia-smi on the host "
        "names them; often it is an orphan of an earlier job."
    )),
    Case("GpuMemoryForeignProcess", "half a GiB", "30m", others(GIB / 2)),
    Case("GpuMemoryForeignProcess", "now and then", "30m", others(" ".join([f"{5 * GIB} 0"] * 40))),
]  # fmt: skip

CASES = [*NEXT_REQUEST, *TIGHT, *THRASHING, *OUT_OF_MEMORY, *LEAK, *FOREIGN]


@pytest.mark.real
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_alert(case, judge):
    judge(case)
