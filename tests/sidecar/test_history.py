"""The last hour of each device, and the charts drawn from it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fake_agents import process_sample
from gpufrag.metrics.places import name_ranks
from gpufrag.metrics.view import Fleet, RankView
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import Heap
from gpufrag.sidecar import history
from gpufrag.sidecar.history import History, key_of
from gpufrag.sidecar.page.charts import BAR_WIDTH, memory_bar, sparkline


def a_fleet(time: float, *ranks: int, alive: bool = True) -> Fleet:
    return Fleet(time, tuple(RankView(process_sample(rank), alive) for rank in ranks))


def times(found: History, rank: int = 0) -> list[float]:
    (named,) = name_ranks(a_fleet(0.0, rank).ranks)
    return [point.time for point in found.points(key_of(named, named.view.sample.devices[0]))]


def test_points_cover_an_hour_by_half_minutes() -> None:
    found = History()
    for second in range(0, 2 * 3600, 10):
        found.add(a_fleet(float(second), 0))
    assert times(found) == [3600.0 + 30 * number for number in range(history.POINTS)]


def test_restarted_rank_continues_its_series() -> None:
    found = History()
    found.add(a_fleet(0.0, 0))
    found.add(Fleet(30.0, (RankView(process_sample(0, pid=4711, start=950.0)),)))
    assert times(found) == [0.0, 30.0]


def test_clock_set_back_adds_points_again() -> None:
    found = History()
    for time in (1000.0, 10.0):
        found.add(a_fleet(time, 0))
    assert times(found) == [1000.0, 10.0]


def test_device_unseen_for_an_hour_is_forgotten() -> None:
    found = History()
    found.add(a_fleet(0.0, 0, 1))
    found.add(a_fleet(3601.0, 1))
    assert (times(found, 0), times(found, 1)) == ([], [0.0, 3601.0])


def test_number_of_devices_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_DEVICES", 2)
    found = History()
    for rank in range(4):
        found.add(a_fleet(float(rank), rank))
    assert [bool(times(found, rank)) for rank in range(4)] == [False, False, True, True]


def test_exited_rank_adds_no_points() -> None:
    found = History()
    found.add(a_fleet(0.0, 0, alive=False))
    assert times(found) == []


def test_sparkline_scales_to_its_values_and_the_threshold() -> None:
    assert re.findall(r'd="([^"]*)"', sparkline([1.0, 3.0, 2.0])) == ["M0.0 19.0L32.0 1.0L64.0 10.0"]
    assert 'y1="1.0"' in sparkline([1.0, 2.0], threshold=4.0)
    assert re.findall(r'd="([^"]*)"', sparkline([1.0, None, 1.0])) == ["M0.0 19.0M64.0 19.0"]


@pytest.mark.parametrize("values", [[], [1.0], [None, 2.0, None]])
def test_sparkline_needs_two_values(values: list[float | None]) -> None:
    assert sparkline(values) == ""


def test_memory_bar_fills_the_limit() -> None:
    heap = process_sample().devices[0].snapshots[0].measured
    widths = [float(width) for width in re.findall(r'<rect[^>]* width="([\d.]+)"', memory_bar(heap))]
    assert sum(widths) == pytest.approx(BAR_WIDTH, abs=0.05)
    assert widths[0] == pytest.approx(BAR_WIDTH * heap.active / max(heap.limit or 0, heap.reserved), abs=0.01)


def test_memory_bar_of_an_empty_heap_is_empty() -> None:
    empty = measure(Heap(()), Driver(0, 0, None))
    assert memory_bar(replace(empty, limit=0)) == ""
