"""When each alert fires, with which text, and when it must not, as `promtool test rules` evaluates it."""

import re
from dataclasses import replace

import pytest

from promtool import EVERYTHING, GIB, JOB, Case, Firing, Judge, Line, device, line

pytestmark = pytest.mark.real

MIB = 1 << 20
POD = "pod llm-0, 10.0.0.1:9836"
WHO = f"Job llm (rank 0, device 0, {POD}"
SECOND_POD = {"pod": "llm-1", "instance": "10.0.0.2:9836"}
VISION = {"job_name": "vision", "pod": "vision-0", "instance": "10.0.0.3:9836"}


ROW = re.compile(r"(?P<start>_|-?[\d.]+)(?P<step>[+-][\d.]+)?x(?P<more>\d+)")


def expanded(values: str) -> list[str]:
    """promtool's shorthand, value by value."""
    shown: list[str] = []
    for token in values.split():
        if (row := ROW.fullmatch(token)) is None:
            shown.append(token)
        elif row["start"] == "_":
            shown += ["_"] * int(row["more"])
        else:
            step = float(row["step"] or 0)
            shown += [f"{float(row['start']) + step * place:.6f}" for place in range(int(row["more"]) + 1)]
    return shown


def memory(free, largest, limit: float = 80, at: str = "peak", **labels: str) -> list[Line]:
    """free_total and largest_allocatable in GiB, or as promtool's values in bytes."""
    free, largest = (GIB * value if isinstance(value, (int, float)) else value for value in (free, largest))
    return [
        device("gpufrag_allocator_free_total_bytes", free, at=at, **labels),
        device("gpufrag_allocator_largest_allocatable_bytes", largest, at=at, **labels),
        device("gpufrag_allocator_limit_bytes", GIB * limit, **labels),
    ]


def fragmented(
    rank="0", pod="llm-0", job=JOB, instance="10.0.0.1:9836", at="peak", largest="5GiB", ratio=8, who="", setting=""
):
    return Firing(
        f"Job {job['job_name']} ({who or f'rank {rank}'}, device 0, pod {pod}, {instance}, at {at}): fragmentation "
        f"ratio {ratio} (threshold 4) within the last 2m. The largest possible allocation is now {largest} of 40GiB "
        "free. Larger requests will fail. Checkpoint and restart the job."
        f"{setting} To choose a better allocator setting, run `gpufrag whatif` on a recording.",
        job=job,
        annotations={"worst_rank": rank, "worst_pod": pod, "worst_instance": instance},
    )


def step_limits(recorded: float, expandable: float) -> list[Line]:
    """The smallest limits of the last step in GiB, in two ranks."""
    name = "gpufrag_whatif_smallest_limit_bytes"
    return [
        device("gpufrag_step_smallest_limit_bytes", GIB * (recorded + 2)),
        device(name, GIB * recorded, setting="recorded, packed"),
        device(name, GIB * expandable, setting="expandable_segments"),
        device(name, GIB * 20, setting="expandable_segments", rank="1", **SECOND_POD),
        device(name, GIB * recorded, setting="default"),
        device(name, GIB * 1, setting="anchor:8GiB"),
        device(name, GIB * 1, setting="recorded, empty_cache"),
    ]


BAD, GOOD = f"{5 * GIB}+0x120", f"{38 * GIB}+0x120"
FLAPPING = " ".join(f"{5 * GIB} stale" for _ in range(60))
UNTIL_10_MIN = f"{5 * GIB}+0x20 {38 * GIB}+0x100"
ONCE = f"{38 * GIB}+0x8 {5 * GIB} {38 * GIB}+0x100"
FIRST_3_MIN, AFTER_3_MIN = f"{5 * GIB}+0x6 {38 * GIB}+0x100", f"{38 * GIB}+0x6 {5 * GIB}+0x100"
VARIES = " ".join(f"{GIB * gib:.0f}" for gib in 30 * (32, 2.5, 9, 32))
"""Of 40 GiB: every two minutes a ratio of 16, then 4.4."""
POD_ENDS, POD_STARTS = f"{5 * GIB}+0x20 stale", f"_x20 {38 * GIB}+0x100"


def cache(free: float, largest: float, small: float = 0.1) -> list[Line]:
    """free_cached and largest_free_block of the large pool in GiB, and a small pool."""
    figures = {"free_cached": (free, small), "largest_free_block": (largest, small / 10)}
    return [
        device(f"gpufrag_allocator_{name}_bytes", GIB * value, pool=pool, at="boundary")
        for name, values in figures.items()
        for pool, value in zip(("large", "small"), values)
    ]


HEALTHY_TRAINING = [*memory(124, 100, limit=140, at="boundary"), *cache(24, 1, small=0)]
"""As measured: 24 GiB cached in blocks of at most 1 GiB, while over 100 GiB can be allocated at once."""

FRAGMENTED = [
    Case("GpuMemoryFragmented", "at the peak only", "12m", [*memory(40, 5), *memory(60, 58, at="boundary")],
         fragmented()),
    Case("GpuMemoryFragmented", "another setting needs less", "12m", [*memory(40, 5), *step_limits(30, 29)],
         fragmented(setting=" The last recorded step needs less memory with the setting expandable_segments.")),
    Case("GpuMemoryFragmented", "no setting saves 2 %", "12m", [*memory(40, 5), *step_limits(30, 29.5)], fragmented()),
    Case("GpuMemoryFragmented", "without step moments", "12m", memory(40, 5, at="timer"), fragmented(at="timer")),
    Case("GpuMemoryFragmented", "every other scrape fails", "12m", memory(40, FLAPPING), fragmented()),
    Case("GpuMemoryFragmented", "for a while after the ratio recovered", "14m", memory(40, UNTIL_10_MIN),
         fragmented(largest="38GiB")),
    Case("GpuMemoryFragmented", "resolved after the ratio recovered", "20m", memory(40, UNTIL_10_MIN)),
    Case("GpuMemoryFragmented", "resolved after a restart in another pod", "20m",
         [*memory(40, POD_ENDS), *memory(40, POD_STARTS, **SECOND_POD)]),
    Case("GpuMemoryFragmented", "the pod of the worst rank is gone", "12m",
         memory(f"{40 * GIB}+0x22 stale", f"{5 * GIB}+0x22 stale"), fragmented()),
    Case("GpuMemoryFragmented", "process without a rank", "12m",
         memory(40, 5, rank="", process="4711"), fragmented(rank="", who="process 4711")),
    Case("GpuMemoryFragmented", "for less than five minutes", "4m", memory(40, 5)),
    Case("GpuMemoryFragmented", "one bad sample", "9m", memory(40, ONCE)),
    Case("GpuMemoryFragmented", "at the threshold", "12m", memory(40, 10)),
    Case("GpuMemoryFragmented", "full device", "12m", memory(3.9, 0.4)),
    Case("GpuMemoryFragmented", "nothing free", "12m", memory(0, 0)),
    Case("GpuMemoryFragmented", "device of unknown size", "12m", memory(40, 5)[:2]),
    Case("GpuMemoryFragmented", "worst rank changes", "7m",
         [*memory(40, FIRST_3_MIN), *memory(40, AFTER_3_MIN, rank="1", **SECOND_POD)],
         fragmented(rank="1", pod="llm-1", instance="10.0.0.2:9836")),
    Case("GpuMemoryFragmented", "names the rank that had the reported ratio", "12m",
         [*memory(40, VARIES), *memory(40, 8, **{**SECOND_POD, "rank": "1"})], fragmented(ratio=16, largest="32GiB")),
    Case("GpuMemoryFragmented", "worst of several devices and frameworks", "12m",
         [*memory(40, 5), *memory(40, 8, at="boundary", device="1"), *memory(40, 10, at="timer", framework="jax")],
         fragmented()),
    Case("GpuMemoryFragmented", "only one of two jobs with equal ranks", "12m",
         [*memory(40, BAD, **VISION), *memory(40, GOOD)],
         fragmented(pod="vision-0", job={**JOB, "job_name": "vision"}, instance="10.0.0.3:9836")),
    Case("GpuMemoryFragmented", "healthy training with a cache ratio of 24", "30m", HEALTHY_TRAINING),
    Case("GpuMemoryCacheFragmented", "even for a healthy training", "12m", HEALTHY_TRAINING, Firing(
        f"{WHO}, at boundary): cache ratio 24. This alone is not a problem: the allocator returns free segments to the "
        "driver before it raises an out-of-memory error. Act only if GpuMemoryFragmented also fires."
    )),
    Case("GpuMemoryCacheFragmented", "large blocks", "12m", cache(24, 12)),
    Case("GpuMemoryCacheFragmented", "nothing cached", "12m", cache(0, 0, small=0)),
]  # fmt: skip


def allocatable(gib: float | str, at: str) -> Line:
    return device("gpufrag_allocator_largest_allocatable_bytes", gib if isinstance(gib, str) else GIB * gib, at=at)


def recurring(gib: float) -> Line:
    return device("gpufrag_allocator_largest_recurring_bytes", GIB * gib)


NEXT_FAILS = Firing(
    f"{WHO}): the largest request of the last recorded step is 6GiB, but for the last 2m the largest possible "
    "allocation was 5GiB. Save a checkpoint now. Then restart the job, or reduce the batch size or the sequence length."
)
PARAMETER = device("gpufrag_allocator_largest_active_block_bytes", 20 * GIB, pool="large", at="boundary")
ONE_TO_FIVE = " ".join(f"{GIB * gib}" for gib in 20 * (1, 5))

NEXT_REQUEST = [
    Case("GpuMemoryNextRequestWillFail", "too little at every moment", "7m",
         [allocatable(5, "boundary"), allocatable(1, "peak"), recurring(6)], NEXT_FAILS),
    Case("GpuMemoryNextRequestWillFail", "every other scrape fails", "7m",
         [allocatable(FLAPPING, "boundary"), recurring(6)], NEXT_FAILS),
    Case("GpuMemoryNextRequestWillFail", "names the best moment outside of peaks", "7m",
         [allocatable(ONE_TO_FIVE, "boundary"), allocatable(7, "peak"), recurring(6)], NEXT_FAILS),
    Case("GpuMemoryNextRequestWillFail", "the block itself is allocated at the peak", "30m",
         [allocatable(10, "boundary"), allocatable(1, "peak"), recurring(6)]),
    Case("GpuMemoryNextRequestWillFail", "the only large block is a parameter", "30m",
         [allocatable(5, "boundary"), PARAMETER, recurring(0.5)]),
    Case("GpuMemoryNextRequestWillFail", "nothing recurs", "30m", [allocatable(5, "boundary"), PARAMETER]),
]  # fmt: skip


def share(free: float | str, at: str = "peak") -> list[Line]:
    total = device("gpufrag_allocator_free_total_bytes", free if isinstance(free, str) else GIB * free, at=at)
    return [total, device("gpufrag_allocator_limit_bytes", 80 * GIB)]


FULL = Firing(
    f"{WHO}, at peak): 2GiB left, 2.5% of the limit. The memory is full, not fragmented: a restart does not help. "
    "Reduce the batch size, or ignore this if the job is sized to fill the device."
)
RETRIES = "gpufrag_allocator_alloc_retries_total"
FLUSHES = Firing(
    f"{WHO}): 4 cache flushes per minute. Reduce the peak memory, or raise the memory limit of the process."
)
FULL_MEMORY = [
    Case("GpuMemoryTight", "2 of 80 GiB left", "17m", share(2), FULL),
    Case("GpuMemoryTight", "again and again", "20m", share(" ".join([f"{2 * GIB}", f"{40 * GIB}"] * 30)), FULL),
    Case("GpuMemoryTight", "for too short a time", "14m", share(2)),
    Case("GpuMemoryTight", "full once in five minutes", "30m",
         share(" ".join([f"{2 * GIB}", *[f"{40 * GIB}"] * 9] * 6))),
    Case("GpuMemoryTight", "half of it left", "30m", share(40)),
    Case("GpuAllocatorThrashing", "two each half minute", "16m", [device(RETRIES, "0+2x120")], FLUSHES),
    Case("GpuAllocatorThrashing", "across a restart of the rank", "20m", [device(RETRIES, "90+2x20 0+2x60")], FLUSHES),
    Case("GpuAllocatorThrashing", "burst at startup", "20m", [device(RETRIES, "0+10x4 40+0x100")]),
    Case("GpuAllocatorThrashing", "counter reset", "20m", [device(RETRIES, "90+0x30 0+0x60")]),
]  # fmt: skip


def margin(values: str | float, limit: float = 80) -> list[Line]:
    """The margin in GiB, or as promtool's values in bytes; the smallest limit is the rest of the limit."""
    values = f"{GIB * values:.0f}+0x120" if isinstance(values, (int, float)) else values
    needed = [value if value in ("_", "stale") else f"{GIB * limit - float(value):.0f}" for value in expanded(values)]
    return [device("gpufrag_step_margin_bytes", values), device("gpufrag_step_smallest_limit_bytes", " ".join(needed))]


LOW = Firing(
    f"{WHO}): the margin of the last analysed step is 2GiB, 2.5% of the memory limit. A step that needs that much "
    "more runs out of memory. Compare the smallest limits under other allocator settings on the Job dashboard, "
    "or reduce the batch size."
)
FALLS = Firing(
    f"{WHO}): the margin is 6.25GiB and falls. At this rate it reaches 0 in 50m 0s, and the job runs out of memory. "
    "Save a checkpoint now, then look for a leak, growing batches or growing fragmentation."
)
FALL = GIB // 16
"""Bytes in each half minute: 7.5 GiB in an hour."""
MARGIN = [
    Case("GpuMemoryMarginLow", "2 of 80 GiB left", "8m", margin(2), LOW),
    Case("GpuMemoryMarginLow", "every other step needs more", "8m", margin(" ".join([f"{2 * GIB}", f"{9 * GIB}"] * 30)),
         LOW),
    Case("GpuMemoryMarginLow", "for too short a time", "4m", margin(2)),
    Case("GpuMemoryMarginLow", "at the threshold", "20m", margin(4)),
    Case("GpuMemoryMarginLow", "limit unknown", "20m", margin(2)[1:]),
    Case("GpuMemoryMarginLow", "process exited", "20m", margin(f"{2 * GIB}+0x20 stale")),
    Case("GpuMemoryMarginFalling", "0 within an hour", "40m", margin(f"{180 * FALL}-{FALL}x120"), FALLS),
    Case("GpuMemoryMarginFalling", "too little history", "29m", margin(f"{140 * FALL}-{FALL}x120")),
    Case("GpuMemoryMarginFalling", "falls too slowly", "50m", margin(f"{400 * FALL}-{FALL}x120")),
    Case("GpuMemoryMarginFalling", "dropped once and is steady", "50m", margin(f"{40 * GIB}+0x44 {5 * GIB}+0x80")),
    Case("GpuMemoryMarginFalling", "rises", "50m", margin(f"{GIB}+{FALL}x120")),
    Case("GpuMemoryMarginFalling", "steady at 0", "50m", margin("0+0x120")),
]  # fmt: skip

OOMS, OOM_TIME, OOM_SIZE = (
    "gpufrag_allocator_ooms_total",
    "gpufrag_oom_last_timestamp_seconds",
    "gpufrag_oom_last_requested_bytes",
)


def errors(values: str, cause: str = "fragmentation") -> list[Line]:
    """An error at minute 10; `values` is the rest of the series."""
    return [
        device(OOM_TIME, f"_x20 590+0{values}"),
        device(OOM_SIZE, f"_x20 {3 * GIB}+0{values}"),
        device("gpufrag_oom_causes_total", f"_x20 1+0{values}", cause=cause),
    ]


def failed(who: str, details: str = "") -> Firing:
    return Firing(
        f"{who}: out of memory within the last 10m.{details} The job may have caught the error. Run `gpufrag oom list` "
        "on the host for details."
    )


OUT_OF_MEMORY = [
    Case("GpuMemoryOutOfMemory", "counter increased", "12m", [device(OOMS, "0+0x20 1+0x100")], failed("Job llm")),
    Case("GpuMemoryOutOfMemory", "first scrape of a process already reports one", "11m", errors("x100"),
         failed(f"{WHO})", " The last failed request was for 3GiB. Cause: fragmentation (1 in total).")),
    Case("GpuMemoryOutOfMemory", "long ago", "20m", errors("x100")),
    Case("GpuMemoryOutOfMemory", "counter constant", "12m", [device(OOMS, 5)]),
    Case("GpuMemoryOutOfMemory", "counter reset", "12m", [device(OOMS, "5+0x20 0+0x100")]),
    Case("GpuMemoryOutOfMemory", "process and pod are gone", "18m", errors("x2 stale", "capacity"),
         failed(f"{WHO})", " Cause: capacity (1 in total).")),
    Case("GpuMemoryOutOfMemory", "long ago and the process is gone", "20m", errors("x2 stale", "capacity")),
    Case("GpuMemoryOutOfMemory", "size of the request unknown", "11m", errors("x100")[:1], failed(f"{WHO})")),
]  # fmt: skip

STEPS, FREE = "gpufrag_steps_total", "gpufrag_allocator_free_total_bytes"


def leak(per_step: str | float, steps: str = "0+60x120") -> list[Line]:
    """Two steps per second, by default, with 40 GiB left."""
    return [
        device("gpufrag_leak_bytes_per_step", per_step),
        device(STEPS, steps, device=""),
        device(FREE, 40 * GIB, at="peak"),
        device(FREE, 60 * GIB, at="boundary"),
    ]


def growing(by: str, full: str = "2h 50m 40s", who: str = "rank 0") -> Firing:
    return Firing(
        f"Job llm ({who}, {POD}): allocated memory keeps growing, by {by}. At this rate the memory is full in {full}. "
        "Look for tensors that are kept with their graph (a summed loss, a list of outputs) and for unbounded caches."
    )


SERVING = [
    device("gpufrag_leak_bytes_per_second", 4 * MIB, rank="", process="4711"),
    device(FREE, 40 * GIB, at="timer", rank="", process="4711"),
]
SECOND_FRAMEWORK = [
    device("gpufrag_leak_bytes_per_step", 2 * MIB, framework="jax"),
    device(STEPS, "0+60x120", device=""),
    device(FREE, 40 * GIB, at="timer", framework="jax"),
    device(FREE, 60 * GIB, at="peak"),
]
FREE_UNKNOWN = [
    device("gpufrag_leak_bytes_per_step", 2 * MIB, framework="tensorflow"),
    device(STEPS, "0+60x120", device=""),
    device(FREE, 40 * GIB, at="peak"),
    device(FREE, GIB, at="peak", device="1"),
]
BOTH = [*SECOND_FRAMEWORK, device("gpufrag_leak_bytes_per_second", 8 * MIB, framework="tensorflow")]
ONLY_BY_SECOND = [
    device("gpufrag_leak_bytes_per_step", 0),
    device("gpufrag_leak_bytes_per_second", 4 * MIB, framework="tensorflow"),
    *FREE_UNKNOWN[1:],
]
LEAK = [
    Case("GpuMemoryLeakSuspected", "full within three hours", "25m", leak(2 * MIB), growing("2MiB per step")),
    Case("GpuMemoryLeakSuspected", "server without steps", "25m", SERVING,
         growing("4MiB per second", who="process 4711")),
    Case("GpuMemoryLeakSuspected", "second framework of a process", "25m", SECOND_FRAMEWORK, growing("2MiB per step")),
    Case("GpuMemoryLeakSuspected", "framework that does not report free memory", "25m", FREE_UNKNOWN,
         growing("2MiB per step")),
    Case("GpuMemoryLeakSuspected", "by step and, faster, by second", "25m", BOTH,
         growing("2MiB per step, by 8MiB per second", full="1h 25m 20s")),
    Case("GpuMemoryLeakSuspected", "by second, next to a framework without a leak", "25m", ONLY_BY_SECOND,
         growing("4MiB per second")),
    Case("GpuMemoryLeakSuspected", "server without growth", "25m",
         [line | {"values": "0+0x120"} if "leak" in line["series"] else line for line in SERVING]),
    Case("GpuMemoryLeakSuspected", "too slow to matter", "40m", leak(1024)),
    Case("GpuMemoryLeakSuspected", "memory shrinks", "40m", leak(f"{-2 * MIB}+0x120")),
    Case("GpuMemoryLeakSuspected", "no steps", "40m", leak(2 * MIB, steps="500+0x120")),
    Case("GpuMemoryLeakSuspected", "step counter reset", "25m", leak(1024, steps="900000+60x20 0+60x90")),
]  # fmt: skip


def others(values: str | float) -> list[Line]:
    return [device("gpufrag_device_other_processes_memory_used_bytes", values, rank="", uuid="GPU-1")]


FOREIGN = [
    Case("GpuMemoryForeignProcess", "5 GiB for long", "20m", others(5 * GIB), Firing(
        "Job llm (device 0, GPU-1, 10.0.0.1:9836): processes without an agent hold 5GiB. Run nvidia-smi on the host to "
        "list them. Often, a process of an earlier job is left over."
    )),
    Case("GpuMemoryForeignProcess", "half a GiB", "30m", others(GIB / 2)),
    Case("GpuMemoryForeignProcess", "now and then", "30m", others(" ".join([f"{5 * GIB} 0"] * 40))),
]  # fmt: skip

SAMPLED, UP = "gpufrag_sample_timestamp_seconds", "gpufrag_up"
NEW_POD = {"pod": "llm-1-again", "instance": "10.0.0.9:9836"}


def rank(name: str, values: str | float, number: int = 0, **labels: str) -> Line:
    return device(name, values, rank=str(number), device="", **labels)


GONE = Firing(
    "Job llm: 1 rank(s) disappeared within the last 30m. The other ranks may wait for them in a collective. Check the "
    "logs of the missing ranks."
)
ENDS, RETURNS = "1+0x20 0+0x100", "1+0x20 0+0x4 1+0x90"
RANKS = [
    Case("GpufragSampleStale", "no sample since minute 1", "20m", [rank(SAMPLED, 60)], Firing(
        f"Job llm (rank 0, {POD}): the last sample is 19m 0s old. Run `py-spy dump --pid PID` to see where the process "
        "hangs."
    )),
    Case("GpufragSampleStale", "a new sample at each scrape", "20m", [rank(SAMPLED, "0+30x120")]),
    Case("GpufragSampleStale", "process exited", "20m", [rank(SAMPLED, "0+30x20 stale")]),
    Case("GpufragSampleStale", "for too short a time", "4m", [rank(SAMPLED, "0+0x8 270+30x100")]),
    Case("GpufragRankMissing", "process exited", "20m",
         [rank(UP, 1), rank(UP, ENDS, 1, **SECOND_POD)], GONE),
    Case("GpufragRankMissing", "pod is gone", "20m",
         [rank(UP, 1), rank(UP, "1+0x20 stale", 1, **SECOND_POD)], GONE),
    Case("GpufragRankMissing", "another job still has that rank", "20m",
         [rank(UP, 1), rank(UP, "1+0x20 stale", 1, **SECOND_POD), rank(UP, 1, 1, **VISION)], GONE),
    Case("GpufragRankMissing", "it came back", "20m", [rank(UP, 1), rank(UP, RETURNS, 1, **SECOND_POD)]),
    Case("GpufragRankMissing", "it came back in another pod", "20m",
         [rank(UP, 1), rank(UP, "1+0x20 stale", 1, **SECOND_POD), rank(UP, "_x22 1+0x90", 1, **NEW_POD)]),
    Case("GpufragRankMissing", "the whole job ended", "20m", [rank(UP, ENDS), rank(UP, ENDS, 1, **SECOND_POD)]),
    Case("GpufragRankMissing", "every other scrape fails", "20m",
         [rank(UP, 1), rank(UP, " ".join(["1 stale"] * 60), 1, **SECOND_POD)]),
    Case("GpufragRankMissing", "the exited process had no rank", "20m",
         [rank(UP, 1), device(UP, ENDS, rank="", device="", process="4711")]),
]  # fmt: skip


def down(job: str) -> Firing:
    text = (
        f"Job {job}: 1 target(s) down (for example, 10.0.0.1:9836). The Targets page of Prometheus shows the error. "
        "Training is not affected."
    )
    return Firing(text, job={"job": job})


def target(name: str, values: str, **labels: str) -> Line:
    return line(name, values, **{"namespace": "", "job_name": "", "pod": "", **labels})


STALLED, CIRCUIT = "gpufrag_stall_seconds_total", "gpufrag_restarter_circuit_open"
RESTARTER = {"job": "gpufrag-restarter", "job_name": "", "pod": "", "instance": "10.0.0.8:9837"}
HEALTH = [
    Case("GpufragTargetDown", "never answered", "8m", [target("up", "0+0x100")], down("gpufrag")),
    Case("GpufragTargetDown", "served gpufrag in a scrape of another name", "20m",
         [target("up", ENDS, job="pods"), target("gpufrag_build_info", "1+0x20 stale", job="pods")], down("pods")),
    Case("GpufragTargetDown", "answers", "8m", [target("up", "1+0x100")]),
    Case("GpufragTargetDown", "every other scrape fails", "20m", [target("up", " ".join(["1 0"] * 60))]),
    Case("GpufragTargetDown", "the target is not a sidecar", "20m", [target("up", "0+0x100", job="node")]),
    Case("GpufragAgentOverhead", "two percent, in two parts", "16m",
         [rank(STALLED, "0+0.3x120", cause="stats"), rank(STALLED, "0+0.3x120", cause="snapshot")], Firing(
             f"Job llm (rank 0, {POD}): the agent pauses the process for 2% of the time. Increase the agent's "
             "interval or reduce its budget.")),
    Case("GpufragAgentOverhead", "measuring in the background", "30m",
         [rank(STALLED, "0+3x120", cause="measure"), rank(STALLED, "0+0.03x120", cause="snapshot")]),
    Case("GpufragAgentOverhead", "one per mille", "30m", [rank(STALLED, "0+0.03x120", cause="snapshot")]),
    Case("GpufragAgentOverhead", "counter reset", "30m", [rank(STALLED, "800+0.03x30 0+0.03x90", cause="snapshot")]),
    Case("GpufragRestartRefused", "circuit opens", "1m", [line(CIRCUIT, "0+0x1 1+0x100", **RESTARTER)],
         Firing("Job gpufrag-restarter: the restarter restarts no job, because restarts failed, did not help, or were "
                "too frequent. Check the restarter's decisions, fix the cause, then close the circuit breaker.",
                job={"namespace": "ml", "job": "gpufrag-restarter"})),
    Case("GpufragRestartRefused", "circuit closed", "20m", [line(CIRCUIT, "0+0x100", **RESTARTER)]),
]  # fmt: skip

CASES = [*FRAGMENTED, *NEXT_REQUEST, *FULL_MEMORY, *MARGIN, *OUT_OF_MEMORY, *LEAK, *FOREIGN, *RANKS, *HEALTH]
FIRING = {case.alert: case for case in reversed(CASES) if case.firing}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_alert(case, judge):
    judge(case)


def test_every_alert_has_a_case_that_fires(judge):
    assert FIRING.keys() == judge.alerts.keys()


by_alert = pytest.mark.parametrize("case", FIRING.values(), ids=lambda case: case.alert)


@by_alert
def test_clusters_with_equal_jobs_have_separate_alerts(case, judge):
    twins = [{**line, "series": line["series"].replace("{", '{cluster="b", ', 1)} for line in case.series]
    first = judge.expected(case.alert, case.firing)
    second = {**first, "exp_labels": {**first["exp_labels"], "cluster": "b"}}
    question = {"eval_time": case.at, "alertname": case.alert, "exp_alerts": [first, second]}
    judge.ask({"input_series": [*case.series, *twins], "alert_rule_test": [question]})


@by_alert
def test_alert_fires_if_every_other_scrape_fails(case, judge):
    def flapping(values: str) -> str:
        return " ".join("stale" if place % 2 else value for place, value in enumerate(expanded(values)))

    series = [{**line, "values": flapping(line["values"])} for line in case.series]
    firing = f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}})'
    test = {"expr": firing, "eval_time": case.at, "exp_samples": [{"labels": "{}", "value": 1}]}
    judge.ask({"input_series": series, "promql_expr_test": [test]})


def test_no_alert_fires_without_gpufrag_series(judge):
    series = [{"series": 'up{job="node"}', "values": "0+0x120"}]
    questions = [{"eval_time": "30m", "alertname": name, "exp_alerts": []} for name in FIRING]
    judge.ask({"input_series": series, "alert_rule_test": questions})


@pytest.mark.parametrize(
    ("sidecars", "instance"),
    [([{}], "10.0.0.1:9836"), ([{"job_name": "other", "instance": "10.0.0.7:9836"}], "10.0.0.7:9836"), ([], None)],
    ids=["of the job", "of another job", "none"],
)
def test_runbook_is_on_a_sidecar_by_default(promtool, tmp_path, sidecars, instance):
    case = FIRING["GpuMemoryTight"]
    judge = Judge(promtool, tmp_path, replace(EVERYTHING, runbook_url=""))
    link = f"http://{instance}/runbooks/{case.alert}" if instance else ""
    firing = replace(case.firing, annotations={"runbook_url": link})
    judge(
        replace(
            case,
            series=[*case.series, *(line("gpufrag_build_info", "1+0x120", **one) for one in sidecars)],
            firing=firing,
        )
    )


def test_worst_rank_is_found_with_special_characters_in_selector(promtool, tmp_path):
    case = FIRING["GpuMemoryFragmented"]
    series = [{**line, "series": line["series"].replace("{", """{site="50%s it's {b}", """, 1)} for line in case.series]
    config = replace(EVERYTHING, selector="""site="50%s it's {b}",""")
    Judge(promtool, tmp_path, config)(Case(case.alert, case.why, case.at, series, case.firing))
