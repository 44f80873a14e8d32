"""largest_allocatable against the largest request that the allocator of a torch release really serves."""

import random

import largest_request
import pytest

from fake_cuda.releases import RELEASES

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]  # the first test downloads torch
NEWEST_TWO = RELEASES[-2:]
GIB = 1 << 30
MIG_SIZES = [int(gib * GIB) for gib in (4.75, 9.75, 19.62)]
LARGE_SIZES = [1536 * GIB, 192 * GIB]


@pytest.mark.parametrize("release", NEWEST_TWO)
def test_largest_allocatable_of_random_heaps_is_exact(run_programs, release: str) -> None:
    run_programs(release, [])
    assert list(largest_request.differences(release, seed=0, count=60)) == []


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("size", MIG_SIZES + LARGE_SIZES)
def test_largest_allocatable_is_exact_on_unusual_devices(run_programs, size: int, conf: str) -> None:
    rng = random.Random(size)
    lines = [f"program unusual total={size} free={size - (400 << 20)} other={size // 5}"]
    lines += [f"malloc {block} {rng.randrange(size // 100)}" for block in range(60)]
    lines += [f"free {block}" for block in range(60) if rng.random() < 0.6]
    case = run_programs(RELEASES[-1], ["\n".join([*lines, "largest"])], conf)["unusual"]
    assert largest_request.predict(case) == case["largest"][0]


def test_largest_allocatable_is_exact_with_many_blocks(run_programs) -> None:
    count = 250_000
    lines = ["program many total=85899345920 limit=8589934592 history=0"]
    lines += [f"malloc {block} {512 * (1 + block % 61)}" for block in range(count)]
    lines += [f"free {block}" for block in range(0, count, 2)]
    case = run_programs(RELEASES[-1], ["\n".join([*lines, "largest"])])["many"]
    assert sum(len(segment["blocks"]) for segment in case["segments"]) > 0.9 * count
    assert largest_request.predict(case) == case["largest"][0]


def test_request_refused_by_the_driver_uses_the_cache(run_programs) -> None:
    """The driver refuses large segments although memory is free: only cached blocks serve larger requests."""
    lines = ["program refused total=85899345920", "malloc 1 3000000000", "free 1", "refuse cudaMalloc>1GiB"]
    lines += ["try 2900000000", "malloc 2 2900000000", "try 1000000000", "try 1200000000"]
    case = run_programs(RELEASES[-1], ["\n".join(lines)])["refused"]
    assert case["tried"] == [True, True, False]
