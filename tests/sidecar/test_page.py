"""The landing page: its rows, and that nothing from outside becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fake_agents import process_sample
from gpufrag.metrics.view import CollectorResult, Fleet, RankView
from gpufrag.sidecar import page
from gpufrag.wire.oom_report import Frame, OomReport
from gpufrag.wire.sample import Identity

NOW = 1042.0


class Outline(HTMLParser):
    """Checks that tags nest, and collects what is of interest."""

    VOID = ("meta", "link", "br", "img", "input", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attributes if name in ("href", "src", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def outline(fleet: Fleet) -> Outline:
    return Outline(page.render(fleet).decode())


def test_a_row_tells_the_figures_of_the_latest_snapshot() -> None:
    sample = process_sample(3, time=1000.0)
    (device,) = sample.devices
    late = replace(device.snapshots[0], time=1001.0, measured=replace(device.snapshots[0].measured, free_total=5 << 30))
    sample = replace(sample, devices=(replace(device, snapshots=(late, *device.snapshots)),))
    measured = late.measured
    (row,) = page.rank_rows(Fleet(NOW, (RankView(sample),)))
    assert row._replace(largest_allocatable="", stranded="", reserved="", limit="") == page.RankRow(
        "3", "3", "alive", "42.0 s", f"{measured.ratio:.2f}", "good", "5.00 GiB", "", "", "", ""
    )


@pytest.mark.parametrize(("ahead", "told"), [(0.5, "0 s"), (7200.0, "ahead by 2 h"), (-2.0, "2.00 s")])
def test_a_time_ahead_of_the_clock_is_told(ahead: float, told: str) -> None:
    fleet = Fleet(NOW, (RankView(process_sample(time=NOW + ahead)),), ooms=(_oom(time=NOW + ahead),))
    assert [row.age for row in page.rank_rows(fleet)] == [row["age"] for row in page.oom_rows(fleet)] == [told]


def test_a_ratio_above_the_trigger_is_marked() -> None:
    sample = process_sample()
    (device,) = sample.devices
    bad = replace(device.snapshots[0].measured, free_total=41, largest_allocatable=10)
    sample = replace(sample, devices=(replace(device, snapshots=(replace(device.snapshots[0], measured=bad),)),))
    (row,) = page.rank_rows(Fleet(NOW, (RankView(sample),)))
    assert (row.ratio, row.verdict) == ("4.10", "bad")


def test_what_is_not_known_is_a_dash_and_never_a_zero() -> None:
    (device,) = process_sample().devices
    bare = replace(process_sample(), devices=(replace(device, snapshots=()),))
    dead = RankView(process_sample(1), alive=False)
    none = RankView(replace(process_sample(2), devices=()))
    for row in page.rank_rows(Fleet(NOW, (RankView(bare), dead, none))):
        figures = (row.ratio, row.free_total, row.largest_allocatable, row.stranded, row.reserved, row.limit)
        assert set(figures) == {"–"}


def test_processes_without_a_rank_are_named_by_their_pid() -> None:
    (row,) = page.rank_rows(Fleet(NOW, (RankView(process_sample(None, pid=77)),)))
    assert row.rank == "process 77"


def test_sources_tell_why_they_failed() -> None:
    collectors = {"nvml": CollectorResult(False, None, "no library"), "folder": CollectorResult(True, 0.002)}
    rows = page.collector_rows(Fleet(NOW, collectors=collectors, skipped={"torn": 2, "alien": 0, "newer": 1}))
    assert rows == [
        {"name": "folder", "state": "read", "took": "2.00 ms", "reason": ""},
        {"name": "nvml", "state": "not read", "took": "–", "reason": "no library"},
        {"name": "files skipped", "state": "not read", "took": "–", "reason": "1 newer: upgrade this gpufrag"},
        {"name": "files skipped", "state": "not read", "took": "–", "reason": "2 torn"},
    ]


def test_the_page_is_whole_and_fetches_nothing() -> None:
    ranks = tuple(RankView(process_sample(rank)) for rank in range(8))
    seen = outline(Fleet(NOW, ranks, collectors={"folder": CollectorResult(True, 0.1)}))
    assert not seen.tags & {"script", "link", "img", "iframe", "object", "form"}
    assert seen.links == ["metrics", "-/healthy", "-/ready"]
    assert "8 alive, 0 dead" in seen.text


def test_ranks_that_are_denied_are_counted_beside_the_others_and_the_way_out_is_told() -> None:
    text = outline(Fleet(NOW, (RankView(process_sample()),), skipped={"denied": 3})).text
    assert "1 alive, 0 dead, 3 denied" in text
    assert "3 denied: run the sidecar as the job's user, or make the folder" in text


def test_without_ranks_it_says_what_to_do() -> None:
    assert "gpufrag run -- COMMAND" in outline(Fleet(NOW)).text


def test_nothing_from_outside_becomes_markup() -> None:
    evil = "<script>alert('x')</script>&\"$style ${ranks}"
    sample = process_sample(None)
    sample = replace(sample, identity=replace(sample.identity, host=evil, framework=evil))
    collectors = {evil: CollectorResult(False, None, evil)}
    seen = outline(Fleet(NOW, (RankView(sample),), (), collectors, {evil: 1}))
    assert "script" not in seen.tags
    assert seen.text.count(evil) == 3


def test_the_policy_allows_its_own_style_and_nothing_else() -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", page.render(Fleet(NOW)).decode(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = page.HEADERS["content-security-policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "unsafe" not in policy


def _oom(**changes: object) -> OomReport:
    report = OomReport(
        Identity("host", 7, 1.0, rank=3), 2, NOW - 90, 0, 3 << 30, "fragmentation", ("no piece was large enough",),
        next_step="restart", stack=(Frame("/srv/job/train.py", 40, "forward"),),
    )  # fmt: skip
    return replace(report, **changes)  # type: ignore[arg-type]


def test_an_error_has_a_row_with_its_verdict_and_the_first_piece_of_evidence() -> None:
    (row,) = page.oom_rows(Fleet(NOW, ooms=(_oom(),)))
    assert row == {
        "id": "7-2", "age": "1 min 30 s", "rank": "3", "device": "0", "cause": "fragmentation",
        "requested": "3.00 GiB", "evidence": "no piece was large enough", "place": "job/train.py:40",
        "file": "/srv/job/train.py", "next_step": "restart",
    }  # fmt: skip
    assert "no piece was large enough" in outline(Fleet(NOW, ooms=(_oom(),))).text


def test_only_the_latest_errors_are_shown() -> None:
    assert len(page.oom_rows(Fleet(NOW, ooms=(_oom(),) * 100))) == page.OOMS


def test_without_errors_it_says_so() -> None:
    assert "None that is still kept." in outline(Fleet(NOW)).text


def test_nothing_from_a_report_becomes_markup() -> None:
    evil = "<script>alert('x')</script>\"$style"
    report = _oom(cause=evil, evidence=(evil,), next_step=evil, stack=(Frame(evil, 1, evil),))
    assert "script" not in outline(Fleet(NOW, ooms=(report,))).tags
