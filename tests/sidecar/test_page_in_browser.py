"""The page in a real browser: it updates itself under its own content policy, and fits a phone."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browser import BROWSER, Browser
from fake_agents import FakeAgent, process_sample
from gpufrag.config.sidecar import ControlSettings
from gpufrag.metrics.view import Fleet, RankView, StepView
from gpufrag.sidecar import page
from gpufrag.sidecar.history import History
from gpufrag.sidecar.page import Surroundings
from gpufrag.sidecar.server import Sidecar
from gpufrag.wire.recording import decode, encode
from recorded_steps import recorded_step
from running_server import Running, running, sidecar_of
from sidecar.controlled_rank import controlled

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(BROWSER is None, reason="no chromium: the page was NOT tested in a browser"),
]


def browse(url: str, profile: Path, *flags: str) -> str:
    """Return the page's DOM after 20 s of virtual time."""
    assert BROWSER
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", *flags]
    command += ["--virtual-time-budget=20000", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout


@pytest.fixture
def sidecar(tmp_path: Path) -> Sidecar:
    return sidecar_of(tmp_path)


def test_page_updates_itself(
    sidecar: Sidecar, agent: FakeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.start()
    render = page.render

    def render_then_exit(*arguments: Any) -> bytes:
        content = render(*arguments)
        agent.die()
        return content

    monkeypatch.setattr(page, "render", render_then_exit)
    with running(sidecar.service()) as one:
        dom = browse(one.url(), tmp_path / "profile")
    assert re.search(r"0 alive, 1 dead", dom)
    assert 'role="status"></span>' in dom


def test_page_says_that_the_sidecar_is_gone(sidecar: Sidecar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[Running] = []
    render: Callable[..., bytes] = page.render

    def render_then_end(*arguments: Any) -> bytes:
        servers[0].call(servers[0].server.end)
        return render(*arguments)

    monkeypatch.setattr(page, "render", render_then_end)
    with running(sidecar.service()) as one:
        servers.append(one)
        dom = browse(one.url(), tmp_path / "profile")
    assert "Not updated: the sidecar does not answer" in dom


def test_buttons_appear_with_the_right_token(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123")
    service = sidecar_of(tmp_path / "ranks", control=ControlSettings(token)).service()
    with controlled(tmp_path / "ranks") as rank, running(service) as one, Browser(tmp_path / "profile") as browser:
        browser.open(one.url())
        visible = "getComputedStyle(document.querySelector('button[data-action=explain]')).display !== 'none'"
        answer = "document.getElementById('answer').textContent"
        enter = "(t => { t.value = %r; t.dispatchEvent(new Event('change')); })(document.getElementById('token'))"
        assert browser.run(visible) is False
        browser.run(enter % "wrong")
        assert browser.wait_for(answer) == "the token is not valid"
        assert browser.run(visible) is False
        browser.run(enter % token.read_text())
        browser.wait_for(visible)
        browser.run("document.querySelector('button[data-action=snapshot]').click()")
        browser.wait_for(f"{answer} === 'snapshot taken'")
        browser.run("document.querySelector('button[data-action=explain]').click()")
        report = browser.wait_for("(document.querySelector('#answer a') || {}).href")
        browser.open(report)
        browser.wait_for("document.querySelector('.scroller canvas').width > 300")
        assert "/job/train.py:20 in step" in browser.run("document.body.innerText")
        assert [order.get("steps") for order in rank.orders] == [None, 3]


@pytest.mark.parametrize("width", [1200, 390])
def test_map_of_the_latest_recording_is_on_the_page(
    sidecar: Sidecar, agent: FakeAgent, tmp_path: Path, width: int
) -> None:
    agent.start()
    fresh = encode(replace(decode(recorded_step()), time=time.time()))
    (agent.folder / agent.name.recording).write_bytes(fresh)
    map_width = "Math.max(0, ...[...document.querySelectorAll('svg.map')].map(e => e.getBoundingClientRect().width))"
    with running(sidecar.service()) as one, Browser(tmp_path / "profile") as browser:
        browser.resize(width, 900)
        browser.open(one.url())
        browser.wait_for(f"{map_width} > 0")  # the page refreshes itself until the recording is measured
        assert width / 2 < browser.run(map_width) <= width
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("document.querySelectorAll('svg.map path').length") >= 2
        assert browser.run("document.querySelector('.maps a').href").startswith(one.url() + "steps/")
        browser.run("document.querySelector('.maps').scrollIntoView()")
        browser.screenshot(tmp_path / f"map-{width}.png")
        assert browser.problems == []
        assert all(url.startswith(one.url()) for url in browser.requests)


@pytest.mark.parametrize("width", [1200, 390])
def test_advice_about_an_anchor_wraps(tmp_path: Path, width: int) -> None:
    limits = {"recorded": 40 << 30, "recorded, packed": 40 << 30, "anchor:20GiB": 30 << 30}
    step = StepView(0, 0.0, 1.0, 20 << 30, 1 << 30, 8000, 90 << 30, 50 << 30, limits)
    fleet = Fleet(0.0, (RankView(process_sample(), steps=(step,)),))
    file = tmp_path / "page.html"
    file.write_bytes(page.render(fleet, Surroundings(tmp_path, History(), ())))
    cell = "[...document.querySelectorAll('td')].find(e => e.innerText.includes('no other process can use'))"
    with Browser(tmp_path / "profile") as browser:
        browser.resize(width, 900)
        browser.open(file.as_uri())
        assert browser.run(f"{cell}.getBoundingClientRect().right") <= width
