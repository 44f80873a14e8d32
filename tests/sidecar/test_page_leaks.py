"""The page's section on leaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fake_agents import process_sample
from gpufrag.metrics.view import Fleet, RankView
from gpufrag.sidecar import page
from gpufrag.sidecar.page.leaks import leak_rows
from gpufrag.wire.sample import GrowingStack, Leak, Sums

LEAK = Leak("step", 2e6, 1.9e6, 2.1e6, 10, 90)


def fleet(leak: Leak | None, alive: bool = True) -> Fleet:
    sample = process_sample(3, time=1000.0)
    (device,) = sample.devices
    return Fleet(1042.0, (RankView(replace(sample, devices=(replace(device, leak=leak),)), alive),))


def test_a_leak_is_told_with_what_is_missing_to_find_it() -> None:
    (row,) = leak_rows(fleet(LEAK))
    assert row == {
        "rank": "3", "device": "3", "rate": "1.91 MiB a step", "low": "1.81 MiB", "high": "2.00 MiB",
        "seen": "step 10 to 90", "where": "record the allocator's history to have the places named (docs/leaks.md)",
    }  # fmt: skip


def test_with_history_the_places_are_named() -> None:
    stacks = (GrowingStack(1 << 30, 500, ("train.py:7 step", "train.py:90 main")), GrowingStack(1 << 20, 2, ()))
    (row,) = leak_rows(fleet(replace(LEAK, stacks=stacks)))
    assert row["where"] == (
        "1.00 GiB more at train.py:7 step < train.py:90 main; 1.00 MiB more at no Python stack"
    )  # fmt: skip


@pytest.mark.parametrize("leak", [None, Leak("step"), Leak("second")])
def test_what_does_not_leak_has_no_row(leak: Leak | None) -> None:
    assert leak_rows(fleet(leak)) == []
    assert "No process is known to leak." in page.render(fleet(leak)).decode()


def test_who_has_ended_leaks_no_more() -> None:
    assert leak_rows(fleet(LEAK, alive=False)) == []


def test_nothing_from_outside_becomes_markup() -> None:
    text = page.render(fleet(replace(LEAK, stacks=(GrowingStack(1, 1, ("<b>x</b>.py:1 <module>",)),)))).decode()
    assert "&lt;b&gt;x&lt;/b&gt;.py:1 &lt;module&gt;" in text
    assert "<b>" not in text


def test_an_allocator_without_a_heap_shows_what_it_tells() -> None:
    sample = process_sample(3, time=1000.0)
    told = Sums(1000.0, reserved=100 << 30, free_total=80 << 30, largest_allocatable=16 << 30)
    device = replace(sample.devices[0], totals=None, snapshots=(), sums=told, limit=101 << 30)
    (row,) = page.rank_rows(Fleet(1042.0, (RankView(replace(sample, devices=(device,))),)))
    assert (row.ratio, row.verdict, row.stranded) == ("5.00", "bad", page.NONE)
    assert (row.free_total, row.largest_allocatable) == ("80.0 GiB", "16.0 GiB")
    assert (row.reserved, row.limit) == ("100 GiB", "101 GiB")


def test_a_second_framework_has_its_name_beside_the_device() -> None:
    sample = process_sample(3, time=1000.0)
    both = (replace(sample.devices[0], framework="jax"), *sample.devices)
    rows = page.rank_rows(Fleet(1042.0, (RankView(replace(sample, devices=both)),)))
    assert [row.device for row in rows] == ["3 (jax)", "3"]
