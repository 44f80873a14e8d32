"""The trigger, above all: what makes it fire, and all that must not restart a job."""

import pytest

from promtool import GIB, JOB, Case, Firing, Line, device

CURE = "Restart the job from its next checkpoint; to keep it from coming back, try expandable_segments."
OTHER = {**JOB, "job_name": "vision"}


def memory(free, largest, limit: float = 80, at: str = "peak", **labels: str) -> list[Line]:
    """free_total and largest_allocatable in GiB, as one figure or as promtool's values in bytes."""
    free, largest = (GIB * value if isinstance(value, (int, float)) else value for value in (free, largest))
    return [
        device("gpufrag_allocator_free_total_bytes", free, at=at, **labels),
        device("gpufrag_allocator_largest_allocatable_bytes", largest, at=at, **labels),
        device("gpufrag_allocator_limit_bytes", GIB * limit, **labels),
    ]


def fires(rank="0", pod="llm-0", job=JOB, instance="10.0.0.1:9836", at="peak", largest="5GiB", ratio=8, name=""):
    return Firing(
        f"Job {job['job_name']}: a ratio of {ratio} within the last 2m on rank {name or rank}, device 0, pod {pod}, "
        f"{instance} (at: {at}), which last had 40GiB free, but could get no more than {largest} of it in a single "
        f"request. {CURE}",
        job=job,
        annotations={"worst_rank": rank, "worst_pod": pod, "worst_instance": instance},
    )


BAD, GOOD = f"{5 * GIB}+0x120", f"{38 * GIB}+0x120"
FLAPPING = " ".join(f"{5 * GIB} stale" for _ in range(60))
UNTIL_10_MIN = f"{5 * GIB}+0x20 {38 * GIB}+0x100"
ONCE = f"{38 * GIB}+0x8 {5 * GIB} {38 * GIB}+0x100"
FIRST_3_MIN, AFTER_3_MIN = f"{5 * GIB}+0x6 {38 * GIB}+0x100", f"{38 * GIB}+0x6 {5 * GIB}+0x100"
WANDERS = " ".join(f"{GIB * gib:.0f}" for gib in 30 * (32, 2.5, 9, 32))
"""Of 40 GiB: each two minutes a ratio of 16, then 4.4."""
POD_ENDS, POD_BEGINS = f"{5 * GIB}+0x20 stale", f"_x20 {38 * GIB}+0x100"
NEW = {"pod": "llm-1", "instance": "10.0.0.2:9836"}
VISION = {"job_name": "vision", "pod": "vision-0", "instance": "10.0.0.3:9836"}

CASES = [
    Case("GpuMemoryFragmented", "at the peak alone", "12m", [*memory(40, 5), *memory(60, 58, at="boundary")], fires()),
    Case("GpuMemoryFragmented", "without moments of a step", "12m", memory(40, 5, at="timer"), fires(at="timer")),
    Case("GpuMemoryFragmented", "though every other scrape fails", "12m", memory(40, FLAPPING), fires()),
    Case("GpuMemoryFragmented", "and stays so for a while after the cure", "14m", memory(40, UNTIL_10_MIN),
         fires(largest="38GiB")),
    Case("GpuMemoryFragmented", "resolved after the cure", "20m", memory(40, UNTIL_10_MIN)),
    Case("GpuMemoryFragmented", "resolved after a restart in another pod", "20m",
         [*memory(40, POD_ENDS), *memory(40, POD_BEGINS, **NEW)]),
    Case("GpuMemoryFragmented", "though the pod of the worst rank has just gone", "12m",
         memory(f"{40 * GIB}+0x22 stale", f"{5 * GIB}+0x22 stale"), fires()),
    Case("GpuMemoryFragmented", "a process without a rank", "12m",
         memory(40, 5, rank="", process="4711"), fires(rank="", name="4711")),
    Case("GpuMemoryFragmented", "not for five minutes yet", "4m", memory(40, 5)),
    Case("GpuMemoryFragmented", "one bad sample", "9m", memory(40, ONCE)),
    Case("GpuMemoryFragmented", "at the threshold", "12m", memory(40, 10)),
    Case("GpuMemoryFragmented", "a full device", "12m", memory(3.9, 0.4)),
    Case("GpuMemoryFragmented", "nothing free at all", "12m", memory(0, 0)),
    Case("GpuMemoryFragmented", "a device without a known size", "12m", memory(40, 5)[:2]),
    Case("GpuMemoryFragmented", "while the worst rank changes", "7m",
         [*memory(40, FIRST_3_MIN), *memory(40, AFTER_3_MIN, rank="1", **NEW)],
         fires(rank="1", pod="llm-1", instance="10.0.0.2:9836")),
    Case("GpuMemoryFragmented", "and names the rank whose ratio it tells, though another is the worst by now", "12m",
         [*memory(40, WANDERS), *memory(40, 8, **{**NEW, "rank": "1"})], fires(ratio=16, largest="32GiB")),
    Case("GpuMemoryFragmented", "of several devices and frameworks of a rank, the worst", "12m",
         [*memory(40, 5), *memory(40, 8, at="boundary", device="1"), *memory(40, 10, at="timer", framework="jax")],
         fires()),
    Case("GpuMemoryFragmented", "only the job it is about, of two with the same ranks", "12m",
         [*memory(40, BAD, **VISION), *memory(40, GOOD)],
         fires(pod="vision-0", job=OTHER, instance="10.0.0.3:9836")),
]  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_trigger(case, judge):
    judge(case)


def cache(free: float, largest: float, small: float = 0.1) -> list[Line]:
    """free_cached and largest_free_block of the large pool in GiB, beside a small pool."""
    figures = {"free_cached": (free, small), "largest_free_block": (largest, small / 10)}
    return [
        device(f"gpufrag_allocator_{name}_bytes", GIB * value, pool=pool, at="boundary")
        for name, values in figures.items()
        for pool, value in zip(("large", "small"), values)
    ]


HEALTHY_TRAINING = [*memory(124, 100, limit=140, at="boundary"), *cache(24, 1, small=0)]
"""As measured: 24 GiB cached in pieces of at most 1 GiB, and over 100 GiB to be had in one."""

CRIES_WOLF = Firing(
    "Job llm: rank 0, device 0, pod llm-0, 10.0.0.1:9836 (at: boundary): free bytes in the cache are 24 times its "
    "largest piece. This cries wolf: healthy jobs with varying lengths show a ratio of 24, for the allocator gives "
    "whole free segments back to the driver before it gives up, and the cache alone does not show that. Look at "
    "GpuMemoryFragmented before you do anything."
)


@pytest.mark.real
@pytest.mark.parametrize("case", [
    Case("GpuMemoryFragmented", "a healthy training with a cache ratio of 24", "30m", HEALTHY_TRAINING),
    Case("GpuMemoryCacheFragmented", "even on a healthy training", "12m", HEALTHY_TRAINING, CRIES_WOLF),
    Case("GpuMemoryCacheFragmented", "large pieces", "12m", cache(24, 12)),
    Case("GpuMemoryCacheFragmented", "nothing cached", "12m", cache(0, 0, small=0)),
], ids=lambda case: case.id)  # fmt: skip
def test_cache_alone_restarts_nobody(case, judge):
    judge(case)
