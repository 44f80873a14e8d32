"""The page: its rows and texts, and that foreign text never becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fake_agents import process_sample
from gpufrag import __version__
from gpufrag.metrics.view import CollectorResult, Fleet, RankView, StepView
from gpufrag.sidecar import page
from gpufrag.sidecar.history import History
from gpufrag.sidecar.page import Surroundings
from gpufrag.sidecar.page.charts import memory_map
from gpufrag.sidecar.procfs import AgentProcess
from gpufrag.web.html import Cell, Column
from gpufrag.wire.oom_report import Frame, OomReport
from gpufrag.wire.sample import Counters, GrowingStack, Identity, Leak, ProcessSample, Sums
from helpers import TESTS, kept

NOW = 1042.0
FOLDER = Path("/run/gpufrag")
EVIL = "<script>alert('x')</script>&\"$style ${ranks}"
LEAK = Leak("step", 2e6, 1.9e6, 2.1e6, 10, 90)


class Outline(HTMLParser):
    """Checks that tags nest, and collects links and text."""

    VOID = ("meta", "link", "br", "img", "input", "hr", "path", "line", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.chunks: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attributes if name in ("href", "src", "action")]
        assert not [name for name, _ in attributes if name.startswith("on") or name == "style"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open[-1:] not in (["style"], ["script"]) and data.strip():
            self.chunks.append(" ".join(data.split()))


def outline(fleet: Fleet, *processes: AgentProcess) -> Outline:
    return Outline(page.render(fleet, Surroundings(FOLDER, History(), processes)).decode())


def shown(columns: tuple[Column, ...], row: list[Cell]) -> dict[str, str]:
    return {column.name: cell.text for column, cell in zip(columns, row, strict=True)}


def ranks(fleet: Fleet) -> list[dict[str, str]]:
    return [shown(page.RANK_COLUMNS, row) for row in page.rank_rows(fleet, page.Surroundings(Path(), History()))]


def fleet_of(sample: ProcessSample, alive: bool = True, **changes: object) -> Fleet:
    """A fleet of one rank whose device has these changes."""
    devices = tuple(replace(device, **changes) for device in sample.devices)  # type: ignore[arg-type]
    return Fleet(NOW, (RankView(replace(sample, devices=devices), alive),))


def full_fleet() -> Fleet:
    """A rank with everything, one without snapshots, a server without a rank, an exited rank, and every other row."""
    first, second, server = process_sample(3, time=1000.0, start=900.0), process_sample(2), process_sample(None, pid=77)
    (snapshot, *_) = first.devices[0].snapshots
    late = replace(snapshot, time=1001.0, at="timer", measured=replace(snapshot.measured, free_total=5 << 30))
    peak = replace(snapshot, time=999.0, at="peak", measured=replace(snapshot.measured, free_total=None))
    stacks = (GrowingStack(1 << 30, 500, ("train.py:7 step", "train.py:90 main")), GrowingStack(1 << 20, 2, ()))
    sums = Sums(1000.0, reserved=100 << 30, free_total=80 << 30, largest_allocatable=16 << 30)
    devices = (
        {"snapshots": (peak, snapshot, late), "leak": replace(LEAK, stacks=stacks)},
        {"snapshots": (), "totals": None, "sums": sums, "limit": 101 << 30, "framework": "jax"},
        {"leak": LEAK},
    )
    first = replace(first, health=replace(first.health, stall_seconds={"snapshot": 0.03, "stats": 0.02}))
    fleets = [fleet_of(sample, **changes) for sample, changes in zip((first, second, server), devices)]
    ranks = [view for fleet in fleets for view in fleet.ranks]
    return Fleet(
        NOW,
        (
            replace(ranks[0], steps=(a_step(),), layouts={3: "llsr"}),
            *ranks[1:],
            RankView(process_sample(1), alive=False),
        ),
        collectors={"nvml": CollectorResult(False, None, "no library"), "folder": CollectorResult(True, 0.002)},
        skipped={"torn": 2, "alien": 0, "newer": 1, "denied": 3},
        ooms=(an_oom(),),
    )


def test_text_of_a_full_page_is_as_recorded() -> None:
    text = "\n".join(outline(full_fleet()).chunks).replace(__version__, "VERSION")
    kept(TESTS / "fixtures" / "reports" / "page.txt", f"{text}\n")


def test_maps_are_bounded_and_show_the_most_stranded_first() -> None:
    (snapshot, *_) = process_sample().devices[0].snapshots
    ranks = []
    for rank in range(10):
        measured = replace(snapshot.measured, large=replace(snapshot.measured.large, free_cached=rank << 30))
        fleet = fleet_of(process_sample(rank), snapshots=(replace(snapshot, measured=measured),))
        ranks.append(replace(fleet.ranks[0], layouts={rank: "ls" * 256}))
    markup = page.memory_maps(Fleet(NOW, tuple(ranks)))
    assert re.findall(r"<li>rank (\d+)", markup) == ["9", "8", "7", "6", "5", "4", "3", "2"]
    assert "2 more devices have less stranded memory" in markup
    assert len(markup) < 10_000 * page.MAX_MAPS
    assert page.memory_maps(fleet_of(process_sample())) == '<p class="empty">No snapshots.</p>\n'


def test_map_has_a_row_per_64_parts() -> None:
    markup = memory_map("l" * 64 + "s" * 32 + "r" * 32)
    assert 'viewBox="0 0 64 2"' in markup
    assert 'class="active" d="M0 0h64v1H0z"' in markup
    assert 'class="stranded" d="M0 1h32v1H0z"' in markup
    assert 'class="reclaimable" d="M32 1h32v1H32z"' in markup
    assert 'aria-label="memory map: 50% active, 25% stranded, 25% reclaimable and private"' in markup


def test_leak_rate_has_its_interval_as_title() -> None:
    (row,) = page.leak_rows(fleet_of(process_sample(3), leak=LEAK))
    assert row[2].title == "99 % interval: 1.81 MiB to 2.00 MiB"


def test_setting_beyond_the_limit_is_marked() -> None:
    (row,) = page.step_rows(Fleet(NOW, (RankView(process_sample(), steps=(a_step(),)),)))
    assert row[-3].markup.count("stranded") == 1


@pytest.mark.parametrize(("ratio", "css"), [(41, "bad"), (40, "good")])
def test_ratio_above_the_trigger_is_marked(ratio: int, css: str) -> None:
    (snapshot, *_) = process_sample().devices[0].snapshots
    measured = replace(snapshot.measured, free_total=ratio, largest_allocatable=10)
    fleet = fleet_of(process_sample(), snapshots=(replace(snapshot, measured=measured, at="peak"),))
    (row,) = page.rank_rows(fleet, page.Surroundings(Path(), History()))
    assert [cell.css for cell in row[4:6]] == [css, css]
    tiles = outline(fleet).text.partition("Ranks")[0]
    assert f"Highest ratio at the peak{ratio / 10:.2f}rank 0, device 0" in tiles.replace("\n", "")


def test_unknown_value_is_a_dash() -> None:
    bare = fleet_of(process_sample(), snapshots=()).ranks[0]
    exited = RankView(process_sample(1), alive=False)
    none = RankView(replace(process_sample(2), devices=()))
    for row in ranks(Fleet(NOW, (bare, exited, none))):
        names = ("ratio", "at the peak", "free total", "largest allocatable", "stranded")
        assert {row[name] for name in names} == {"–"}
        assert row["reserved / limit"] == "– / –"


@pytest.mark.parametrize(("ahead", "age"), [(0.5, "0 s"), (7200.0, "ahead by 2 h"), (-2.0, "2.00 s")])
def test_time_in_the_future_is_shown(ahead: float, age: str) -> None:
    fleet = Fleet(NOW, (RankView(process_sample(time=NOW + ahead)),), ooms=(an_oom(time=NOW + ahead),))
    assert ranks(fleet)[0]["age"] == shown(page.OOM_COLUMNS, page.oom_rows(fleet)[0])["age"] == age


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ((), "No ranks. Start a job with `gpufrag run -- COMMAND`."),
        ((AgentProcess(7, None), AgentProcess(8, "/run/gpufrag")), "2 Python processes have the agent but no CUDA"),
        ((AgentProcess(7, "/other"),), "Processes with the agent write to another folder (/other)"),
    ],
)
def test_missing_ranks_are_explained(processes: tuple[AgentProcess, ...], expected: str) -> None:
    text = outline(Fleet(NOW), *processes).text
    assert expected in text
    assert "Samples are read from /run/gpufrag." in text


def a_step(**changes: object) -> StepView:
    limits = {"recorded": 30 << 30, "recorded, packed": 29 << 30, "expandable_segments:True": 25 << 30, EVIL: 50 << 30}
    step = StepView(0, NOW - 5, 1.0, 20 << 30, 1 << 30, 8000, 90 << 30, 40 << 30, limits)
    return replace(step, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "margin"), [({"limit": None}, "–"), ({"smallest_limits": {}}, "–"), ({"limit": 1 << 30}, "-29.0 GiB")]
)
def test_margin_is_unknown_or_negative(changes: dict[str, object], margin: str) -> None:
    (row,) = page.step_rows(Fleet(NOW, (RankView(process_sample(), steps=(a_step(**changes),)),)))
    assert shown(page.STEP_COLUMNS, row)["margin"] == margin


@pytest.mark.parametrize(
    ("limits", "advice"),
    [
        ({"recorded": 1 << 30, "recorded, packed": 100 << 20, "a": 98 << 20, "b": 99 << 20}, "a needs 2.00 MiB less"),
        ({"recorded": 1 << 30, "recorded, packed": 101 << 20, "a": 99 << 20}, "keep the setting"),
        (
            {"recorded, packed": 100 << 20, "anchor:1GiB": 98 << 20},
            "anchor:1GiB needs 2.00 MiB less: without PYTORCH_CUDA_ALLOC_CONF; no other process can use the anchor's "
            "memory",
        ),
        ({"a": 98 << 20}, "–"),
        ({"recorded": 0, "recorded, packed": 0, "recorded, empty_cache": 0, "a": 0}, "keep the setting"),
    ],
)
def test_setting_is_advised_if_it_saves_enough(limits: dict[str, int], advice: str) -> None:
    (row,) = page.step_rows(Fleet(NOW, (RankView(process_sample(), steps=(a_step(smallest_limits=limits),)),)))
    assert shown(page.STEP_COLUMNS, row)["advice"] == advice


def test_steps_of_an_exited_process_are_not_shown() -> None:
    fleet = Fleet(NOW, (RankView(process_sample(), alive=False, steps=(a_step(),)),))
    assert page.step_rows(fleet) == []
    assert "No recorded steps." in outline(fleet).text


def an_oom(**changes: object) -> OomReport:
    report = OomReport(
        Identity("host", 7, 1.0, rank=3), 2, NOW - 90, 0, 3 << 30, "fragmentation", ("no free block is big enough",),
        next_step="restart", stack=(Frame("/srv/job/train.py", 40, "forward"),),
    )  # fmt: skip
    return replace(report, **changes)  # type: ignore[arg-type]


def test_oom_row_links_to_its_report() -> None:
    assert f"oom/{page.report_name(an_oom())}" in outline(Fleet(NOW, ooms=(an_oom(),))).links
    assert "no free block is big enough" in Outline(page.render_report(an_oom()).decode()).text


def test_only_the_latest_ooms_are_listed() -> None:
    assert len(page.oom_rows(Fleet(NOW, ooms=(an_oom(),) * 100))) == page.MAX_OOMS


@pytest.mark.parametrize(
    ("ooms", "expected"),
    [
        (0, "No recent out-of-memory errors."),
        (87, "The allocators counted 87 out-of-memory errors since the processes started (rank 0: 87)"),
    ],
)
def test_missing_reports_agree_with_the_counter(ooms: int, expected: str) -> None:
    totals = process_sample().devices[0].totals
    assert totals is not None
    fleet = fleet_of(process_sample(), totals=replace(totals, counters=Counters(ooms=ooms)))
    assert expected in outline(fleet).text


@pytest.mark.parametrize(("leak", "alive"), [(None, True), (Leak("step"), True), (Leak("second"), True), (LEAK, False)])
def test_no_leak_gives_one_line(leak: Leak | None, alive: bool) -> None:
    fleet = fleet_of(process_sample(), alive, leak=leak)
    assert page.leak_rows(fleet) == []
    assert "No leaks detected." in outline(fleet).text


def test_page_loads_nothing_from_elsewhere() -> None:
    fleet = Fleet(NOW, tuple(RankView(process_sample(rank)) for rank in range(8)))
    seen = outline(fleet)
    assert not set(seen.tags) & {"link", "img", "iframe", "object", "form"}
    assert seen.tags.count("script") == 1
    assert seen.links == ["metrics", "-/healthy", "-/ready", "runbooks/"]
    assert "8 alive, 0 dead" in seen.text


def test_foreign_text_never_becomes_markup() -> None:
    sample = process_sample(None)
    sample = replace(sample, identity=replace(sample.identity, host=EVIL, framework=EVIL))
    report = an_oom(cause=EVIL, evidence=(EVIL,), next_step=EVIL, stack=(Frame(EVIL, 1, EVIL),))
    leak = replace(LEAK, stacks=(GrowingStack(1, 1, (EVIL,)),))
    fleet = fleet_of(sample, leak=leak, framework=EVIL)
    fleet = replace(fleet, collectors={EVIL: CollectorResult(False, None, EVIL)}, skipped={EVIL: 1}, ooms=(report,))
    seen = outline(fleet, AgentProcess(1, EVIL))
    assert seen.tags.count("script") == 1
    assert seen.text.count(EVIL) >= 7
    assert "script" not in Outline(page.render_report(report).decode()).tags


def test_policy_allows_its_own_style_and_script_only() -> None:
    text = page.render(Fleet(NOW), Surroundings(FOLDER, History())).decode()
    policy = page.HEADERS["content-security-policy"]
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert f"{directive} 'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}';" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "script-src" not in page.PLAIN_HEADERS["content-security-policy"]
