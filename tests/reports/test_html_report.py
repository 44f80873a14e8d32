"""The HTML report: its data agrees with the model, hostile text stays text, and it works in a browser offline."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from browser import BROWSER, Browser
from gpufrag.model.allocatable import Driver
from gpufrag.model.culprits import stranded_shares
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import parse
from gpufrag.reports import html
from gpufrag.reports.explain import Explained
from gpufrag.reports.html.data import flames, free_blocks, heap_map
from gpufrag.snapshot_file.profile import read_profiles
from gpufrag.snapshot_file.reading import load
from helpers import SNAPSHOTS, GoldenCase
from staged_programs import MIB, Process, growing_cache, run
from strategies import snapshots

BOX = "(({x, y, width}) => ({x, y, width}))(document.querySelector('.scroller').getBoundingClientRect())"
HOSTILE = "/job/</script><script>alert(1)</script><!--é\ud800.py"


def report(snapshot: Any, name: str = "snapshot.pickle", **driver: int) -> bytes:
    return html.render([Explained(*each) for each in read_profiles(snapshot, driver)], name)


def test_progress_ends_with_the_last_part() -> None:
    calls: list[tuple[int, int]] = []
    found = [Explained(*each) for each in read_profiles(run(growing_cache), {})]
    html.render(found, "snapshot", lambda done, total: calls.append((done, total)))
    assert calls == [(1, 2), (2, 2)]


def data_of(page: bytes) -> list[Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.decode())
    assert found
    return list(json.loads(found[1]))


def test_map_has_every_block_of_the_worst_moment(golden_case: GoldenCase) -> None:
    ((profile, events, end),) = read_profiles(golden_case.raw, {})
    segments = html.device_data(profile, events, end)["map"]["segments"]
    assert [int(each["address"], 16) for each in segments] == [s.address for s in profile.heap.segments]
    assert [each["sizes"] for each in segments] == [list(s.sizes) for s in profile.heap.segments]
    assert sum(sum(each["pins"]) for each in segments) == profile.worst.found.stranded


@given(snapshots())
def test_map_states_add_up_to_the_measured_figures(snapshot: dict[str, Any]) -> None:
    heap = parse(snapshot)
    found = measure(heap, Driver())
    sizes = dict.fromkeys("lwsrc", 0)
    for segment in heap_map(heap, {}, {})["segments"]:
        for size, state in zip(segment["sizes"], segment["states"]):
            sizes[state] += size
    assert sizes["c"] == found.captive
    assert sizes["s"] + sizes["r"] == found.free_cached
    if not any(segment.expandable for segment in heap.segments):
        assert sizes["s"] <= found.stranded
    assert sum(size for _, _, size in free_blocks(heap)) == found.free_cached


def test_flame_graph_has_outermost_frames_first_and_all_bytes() -> None:
    tree = flames({1: 100, 2: 50, 3: 7}, {1: ("leaf", "main"), 2: ("other", "main")})
    assert tree == {
        "name": "all",
        "value": 157,
        "children": [
            {
                "name": "main",
                "value": 150,
                "children": [
                    {"name": "leaf", "value": 100, "children": []},
                    {"name": "other", "value": 50, "children": []},
                ],
            },
            {"name": "no recorded stack", "value": 7, "children": []},
        ],
    }


def test_flame_graph_adds_up_small_stacks() -> None:
    tree = flames(dict.fromkeys(range(5000), 3), {number: (f"f{number}", "main") for number in range(5000)})
    (main,) = tree["children"]
    assert main["children"] == [{"name": "5,000 smaller", "value": 15_000, "children": []}]


def test_flame_graph_of_stranded_bytes_agrees_with_the_culprits() -> None:
    ((profile, events, end),) = read_profiles(run(growing_cache), {})
    tree = html.device_data(profile, events, end)["stranded"]
    assert tree["value"] == profile.worst.found.stranded
    assert tree["value"] == sum(stranded_shares(profile.heap, profile.sites).values())


def test_timeline_reaches_the_recorded_peak(golden_case: GoldenCase) -> None:
    ((profile, events, end),) = read_profiles(golden_case.raw, {})
    found = html.device_data(profile, events, end)["timeline"]
    reserved = [value for value in found["reserved"] if value is not None]
    assert max(reserved) == golden_case.raw["stats"]["reserved_bytes.all.peak"]
    assert found["events"] == sorted(set(found["events"]))
    assert {found["worst"], found["peak"]} <= set(found["events"])
    assert sum(value is not None for value in found["stranded"]) == len(profile.moments)


def hostile_snapshot() -> dict[str, Any]:
    process = Process()
    process.malloc(24 * MIB, 1)
    frames = [{"filename": HOSTILE, "line": 1, "name": "</pre><b>"}]
    snapshot = process.snapshot()
    for entry in (*snapshot["device_traces"][0], *snapshot["segments"][0]["blocks"]):
        entry["frames"] = frames
    return snapshot


def test_hostile_text_ends_no_element() -> None:
    page = report(hostile_snapshot(), name="<img src=x>").decode()
    assert "<img" not in page
    assert "</pre><b>" not in page
    assert "alert(1)</script>" not in page
    (device,) = data_of(page.encode())
    assert device["map"]["frames"][0].startswith("/job/</script><script>alert(1)")


def test_size_of_100_000_events_is_below_5_MB() -> None:
    process = Process()
    for number in range(50_000):
        process.malloc(4096, number % 5000)
    kept = report(process.snapshot())
    assert len(data_of(kept)[0]["map"]["stacks"]) == 5000
    assert len(kept) < 5_000_000


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as one:
        one.resize(1000, 900)
        yield one


def open_report(browser: Browser, path: Path, page: bytes) -> None:
    path.write_bytes(page)
    browser.open(path.as_uri())
    browser.wait_for("document.querySelector('.scroller canvas').width > 300")


@pytest.mark.real
@pytest.mark.skipif(BROWSER is None, reason="no chromium: the report was NOT tested in a browser")
class TestInBrowser:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_report_is_complete_offline(self, browser: Browser, tmp_path: Path, scheme: str) -> None:
        browser.resize(1000, 900, scheme)
        open_report(browser, tmp_path / "report.html", report(load(SNAPSHOTS / "train-varlen.pickle.gz")))
        assert browser.run("document.querySelectorAll('.timeline .uplot canvas').length") == 1
        assert browser.run("document.querySelectorAll('.free .uplot canvas').length") == 1
        assert browser.run("document.querySelectorAll('.flames g.frame').length") > 10
        assert browser.requests == [(tmp_path / "report.html").as_uri()]
        assert browser.problems == []

    def test_keys_select_blocks_and_describe_them(self, browser: Browser, tmp_path: Path) -> None:
        snapshot = run(growing_cache)
        open_report(browser, tmp_path / "report.html", report(snapshot))
        browser.run("document.querySelector('.scroller').focus()")
        browser.press("Home")
        first = browser.run("document.querySelector('.details').textContent")
        browser.press("ArrowRight")
        second = browser.run("document.querySelector('.details').textContent")
        ((profile, _, _),) = read_profiles(snapshot, {})
        blocks = [block for segment in profile.heap.segments for block in segment.blocks()]
        assert first.startswith(f"{blocks[0].address:#x}: ")
        assert second.startswith(f"{blocks[1].address:#x}: ")
        browser.press("Escape")
        assert "arrow keys" in browser.run("document.querySelector('.details').textContent")

    def test_search_finds_stacks_and_addresses(self, browser: Browser, tmp_path: Path) -> None:
        snapshot = run(growing_cache)
        open_report(browser, tmp_path / "report.html", report(snapshot))
        ((profile, _, _),) = read_profiles(snapshot, {})
        own = [block for s in profile.heap.segments for block in s.blocks() if profile.sites.get(block.address)]
        wanted = [block for block in own if profile.sites[block.address] == ("/job/train.py:20 step",)]
        browser.run("document.querySelector('.toolbar input').focus()")
        browser.send("Input.insertText", text="TRAIN.py:20 ")
        assert browser.run("document.querySelector('.toolbar [role=status]').textContent").startswith(
            f"{len(wanted)} blocks, "
        )
        browser.press("Enter")
        details = browser.run("document.querySelector('.details').textContent")
        assert details.startswith(f"{wanted[0].address:#x}: ")
        assert "/job/train.py:20 step" in details
        browser.run("document.querySelector('.toolbar input').value = ''")
        browser.send("Input.insertText", text=hex(own[-1].address + 5))
        assert browser.run("document.querySelector('.details').textContent").startswith(f"{own[-1].address:#x}: ")

    def test_pointer_describes_the_block_below_it(self, browser: Browser, tmp_path: Path) -> None:
        process = Process()
        block = process.malloc(40 * MIB, 1)
        open_report(browser, tmp_path / "report.html", report(process.snapshot()))
        browser.run("document.querySelector('.scroller').scrollIntoView()")
        box = browser.run(BOX)
        browser.point_at(box["x"] + 50, box["y"] + 8)
        assert f"{block.address:#x}: 40.0 MiB in use" in browser.run("document.querySelector('.details').textContent")

    def test_zoom_keeps_the_line_of_the_selected_block(self, browser: Browser, tmp_path: Path) -> None:
        open_report(browser, tmp_path / "report.html", report(load(SNAPSHOTS / "train-varlen.pickle.gz")))
        browser.run("document.querySelector('.scroller').scrollIntoView()")
        browser.run("document.querySelector('.scroller').focus()")
        box = browser.run(
            "(({x, y, width}) => ({x, y, width}))(document.querySelector('.scroller').getBoundingClientRect())"
        )
        y = box["y"] + 1 + 15 * 18 + 5
        browser.click(box["x"] + box["width"] / 2, y)
        selected = browser.run("document.querySelector('.details').textContent")
        height = browser.run("document.querySelector('.scroller').scrollHeight")
        for _ in range(4):
            browser.press("+")
        assert browser.run("document.querySelector('.scroller').scrollHeight") > 8 * height
        seen = set()
        for x in range(4, int(box["width"]) - 20, 4):
            browser.point_at(box["x"] + x, y)
            seen.add(browser.run("document.querySelector('.details').textContent"))
        assert selected in seen
        browser.press("0")
        assert browser.run("document.querySelector('.scroller').scrollHeight") == height

    def test_flame_graph_zooms_by_key(self, browser: Browser, tmp_path: Path) -> None:
        open_report(browser, tmp_path / "report.html", report(load(SNAPSHOTS / "train-varlen.pickle.gz")))
        browser.run("document.querySelector('.flames[data-tree=live] g.frame').focus()")
        browser.press("ArrowDown")
        width = "document.activeElement.querySelector('rect').getAttribute('width')"
        before = browser.run(width)
        details = browser.run("document.querySelector('.flames[data-tree=live] .flame-details').textContent")
        assert details.startswith("no recorded stack: ")
        browser.press("Enter")
        browser.wait_for(f"parseFloat({width}) > {before}")

    def test_flame_graph_shows_a_frame_in_the_map(self, browser: Browser, tmp_path: Path) -> None:
        open_report(browser, tmp_path / "report.html", report(run(growing_cache)))
        browser.run("document.querySelector('.flames[data-tree=stranded] g.frame').focus()")
        browser.press("ArrowDown")
        browser.press("m")
        assert browser.run("document.querySelector('.toolbar input').value").startswith("/job/train.py:")
        assert "pins" in browser.run("document.querySelector('.details').textContent")

    def test_hostile_stack_runs_no_script(self, browser: Browser, tmp_path: Path) -> None:
        open_report(browser, tmp_path / "report.html", report(hostile_snapshot()))
        browser.run("document.querySelector('.scroller').focus()")
        browser.press("Home")
        assert "alert(1)" in browser.run("document.querySelector('.details').textContent")
        assert browser.problems == []

    def test_culprit_button_shows_its_blocks(self, browser: Browser, tmp_path: Path) -> None:
        open_report(browser, tmp_path / "report.html", report(run(growing_cache)))
        browser.run("document.querySelector('button.show').click()")
        assert browser.run("document.querySelector('.toolbar input').value") == "/job/train.py:20 step"
        assert "pins" in browser.run("document.querySelector('.details').textContent")

    def test_report_without_javascript_has_tables_and_text(self, browser: Browser, tmp_path: Path) -> None:
        browser.send("Emulation.setScriptExecutionDisabled", value=True)
        path = tmp_path / "report.html"
        path.write_bytes(report(run(growing_cache)))
        browser.open(path.as_uri())
        browser.send("Emulation.setScriptExecutionDisabled", value=False)
        text = browser.run("document.body.innerText")
        assert "/job/train.py:20 in step" in text
        assert "Without JavaScript" in text
