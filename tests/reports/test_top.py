"""The rows of `gpufrag top`: read from a scrape, sorted, filtered, as text and on a screen."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from fake_agents import process_sample
from gpufrag import metrics
from gpufrag.errors import BadInput, Unavailable, UsageError
from gpufrag.metrics.scraped import RankRow, rank_rows
from gpufrag.metrics.view import Fleet, RankView, StepView
from gpufrag.model.fragmentation import Fragmentation
from gpufrag.reports import top

GIB = 1 << 30
STEP = StepView(0, 999.0, 0.5, 9, 8, 7, 6, 20 * GIB, {"recorded": 15 * GIB, "expandable_segments": 9 * GIB})


def scrape(*ranks: RankView) -> str:
    _, body = metrics.render(Fleet(1000.0, ranks), "", detail=False)
    return body.decode()


def test_row_has_the_figures_of_the_sample() -> None:
    sample = process_sample(0)
    (row,) = rank_rows(scrape(RankView(sample, steps=(STEP,))))
    measured: Fragmentation = sample.devices[0].snapshots[-1].measured
    assert (row.rank, row.device, row.up, row.steps, row.ooms) == ("0", "0", True, 120, 0)
    assert (row.stranded, row.largest_allocatable) == (measured.stranded, measured.largest_allocatable)
    assert row.ratio == pytest.approx(measured.ratio)
    assert (row.smallest_limit, row.margin) == (15 * GIB, 5 * GIB)


def test_peak_ratio_is_separate_from_the_latest() -> None:
    sample = process_sample(1)
    (device,) = sample.devices
    worse = replace(device.snapshots[0].measured, largest_allocatable=1 << 20)
    snapshots = (*device.snapshots, replace(device.snapshots[0], at="peak", time=2000.0, measured=worse))
    (row,) = rank_rows(scrape(RankView(replace(sample, devices=(replace(device, snapshots=snapshots),)))))
    assert row.ratio == pytest.approx(device.snapshots[0].measured.ratio)
    assert row.peak_ratio == pytest.approx(worse.ratio)


def test_dead_rank_keeps_its_row() -> None:
    rows = rank_rows(scrape(RankView(process_sample(0)), RankView(process_sample(1), alive=False)))
    assert [(row.rank, row.up) for row in rows] == [("0", True), ("1", False)]


def test_answer_that_is_no_metrics_is_refused() -> None:
    with pytest.raises(BadInput, match="is not metrics"):
        rank_rows('<html>\n<body lang="en"')


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e300"])
def test_impossible_figure_is_unknown(value: str) -> None:
    names = ("steps_total", "allocator_reserved_bytes", "allocator_ooms_total")
    (row,) = rank_rows(
        'gpufrag_allocator_stranded_bytes{rank="0",device="0"} 7\n'
        + "".join(f'gpufrag_{name}{{rank="0",device="0"}} {value}\n' for name in names)
    )
    assert (row.stranded, row.steps, row.reserved, row.ooms) == (7, None, None, None)
    assert "nan" not in "".join(top.as_lines([row])).lower()


def test_hostile_label_is_short_and_printable() -> None:
    labels = f'rank="\x1b]0;title\x07[/red]",device="{"1" * 5000}",framework="\\n"'
    rows = rank_rows(f"gpufrag_allocator_stranded_bytes{{{labels}}} 7\n")
    lines = top.as_lines(top.chosen(rows, [], top.BY_NAME["device"], True))
    assert all(line.isprintable() and len(line) < 400 for line in lines)


def test_many_ranks_without_device_are_read_quickly() -> None:
    begin = time.process_time()
    count = 20_000
    text = "".join(
        f'gpufrag_up{{rank="{rank}"}} 1\ngpufrag_allocator_stranded_bytes{{rank="{rank}",device="0"}} 1\n'
        for rank in range(count)
    )
    assert len(rank_rows(text)) == count
    assert time.process_time() - begin < 10


ROWS = [
    RankRow("10", "0", free_total=8 * GIB, largest_allocatable=GIB, margin=-GIB, ooms=1),
    RankRow("2", "1", free_total=8 * GIB, largest_allocatable=4 * GIB, margin=3 * GIB),
    RankRow("process 7", "", up=False),
]
HOSTILE = RankRow("[/red]", "[link=x]", free_total=GIB, largest_allocatable=GIB)


def names(rows: list[RankRow]) -> list[str]:
    return [row.rank for row in rows]


@pytest.mark.parametrize(
    ("column", "reverse", "order"),
    [
        ("ratio", True, ["10", "2", "process 7"]),
        ("ratio", False, ["2", "10", "process 7"]),
        ("margin", False, ["10", "2", "process 7"]),
        ("rank", False, ["2", "10", "process 7"]),
        ("state", True, ["process 7", "10", "2"]),
    ],
)
def test_rows_are_sorted_with_unknown_values_last(column: str, reverse: bool, order: list[str]) -> None:
    assert names(top.chosen(ROWS, [], top.column_named(column), reverse)) == order


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", ["10", "2", "process 7"]),
        ("ratio>4", ["10"]),
        ("ratio>=2, margin>0MiB", ["2"]),
        ("margin<1GiB", ["10"]),
        ("rank=2", ["2"]),
        ("rank!=2", ["10", "process 7"]),
        ("state=dead", ["process 7"]),
        ("ooms=1", ["10"]),
    ],
)
def test_filter_keeps_rows_that_meet_all_conditions(text: str, left: list[str]) -> None:
    assert sorted(names(top.chosen(ROWS, top.parse_filter(text), top.BY_NAME["rank"], False))) == sorted(left)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ratio", "is not a condition such as"),
        ("speed>4", "columns: rank, device"),
        ("ratio>much", "ratio must be a number"),
        ("margin<some", "is not a size"),
        ("state>dead", "compare it with = or !="),
    ],
)
def test_bad_filter_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        top.parse_filter(text)


def test_text_is_aligned_and_marks_bad_rows() -> None:
    head, *body = top.as_lines(ROWS)
    assert head.split() == list(top.BY_NAME)
    assert {len(line.removesuffix(" !")) for line in body} == {len(head)}
    assert [line.endswith(" !") for line in body] == [True, False, False]
    assert "8.00" in body[0]


def test_screen_sorts_filters_and_survives_a_lost_sidecar() -> None:
    pytest.importorskip("textual", reason="no textual: the screen was NOT tested")
    from textual.widgets import DataTable, Input

    from gpufrag.reports.top_screen import Top

    answers: list[list[RankRow] | None] = [ROWS]

    def read() -> list[RankRow]:
        if answers[-1] is None:
            raise Unavailable("cannot reach it")
        return answers[-1]

    async def script() -> None:
        app = Top(read, 3600.0, top.BY_NAME["ratio"], True, [])
        async with app.run_test(size=(200, 30)) as pilot:

            def shown() -> list[str]:
                table = app.query_one(DataTable)
                return [str(table.get_row_at(index)[0]) for index in range(table.row_count)]

            async def settle() -> None:
                await app.workers.wait_for_complete()
                await pilot.pause()

            await settle()
            assert shown() == ["10", "2", "process 7"]
            await pilot.press("r")
            assert shown() == ["2", "10", "process 7"]
            await pilot.press("slash", *"ratio>4", "enter")
            assert shown() == ["10"]
            await pilot.press("slash")
            app.query_one(Input).value = "nonsense"
            await pilot.press("enter")
            assert "is not a condition" in str(app.query_one("#status").render())
            answers.append(None)
            app._start_reading()
            await settle()
            assert "cannot reach it" in str(app.query_one("#status").render())
            assert shown() == ["10"]
            answers.append([HOSTILE])
            app._conditions = []
            app._start_reading()
            await settle()
            assert shown() == ["[/red]"]

    asyncio.run(script())
