"""Fine, tune or act."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufrag.model.diagnosis import Health, assess
from gpufrag.model.fragmentation import Fragmentation, Pool, measure
from helpers import GoldenCase

GIB = 1 << 30
POOL = Pool(reserved=10 * GIB, free_cached=0, reclaimable=0)
DEVICE = Fragmentation(0, 0, POOL, Pool(), 0, 0, 80 * GIB, 40 * GIB, 40 * GIB, 39 * GIB)


@pytest.mark.parametrize(
    ("largest", "free", "health"),
    [
        (40, 40, Health.FINE),
        (20, 40, Health.FINE),
        (19, 40, Health.TUNE),
        (10, 40, Health.TUNE),
        (9, 40, Health.ACT),
        (0, 40, Health.ACT),
        (1, 4, Health.TUNE),
        (1, 5, Health.ACT),
    ],
)
def test_ratio_and_free_share_decide(largest: int, free: int, health: Health) -> None:
    found = replace(DEVICE, largest_allocatable=largest * GIB, free_total=free * GIB)
    assert assess(found).health is health


@pytest.mark.parametrize(
    ("stranded", "health"), [(2, Health.FINE), (3, Health.TUNE), (4, Health.TUNE), (5, Health.ACT)]
)
def test_stranded_share_decides_without_driver(stranded: int, health: Health) -> None:
    pool = replace(POOL, free_cached=stranded * GIB)
    found = replace(DEVICE, large=pool, limit=None, headroom=None, free_total=None, largest_allocatable=None)
    assert assess(found).health is health
    assert "needs the driver's figures" in assess(found).reason


def test_empty_heap_without_driver_is_fine() -> None:
    empty = replace(DEVICE, large=Pool(), limit=None, headroom=None, free_total=None, largest_allocatable=None)
    assert assess(empty).health is Health.FINE


def test_recorded_heap_has_an_assessment(golden_case: GoldenCase) -> None:
    found = measure(golden_case.heap, golden_case.driver)
    assert f"{found.ratio:.2f}" in assess(found).reason
