"""`gpufrag top` over a folder and over a sidecar."""

from __future__ import annotations

import json
import sys

import pytest

from fake_agents import FakeAgent, process_sample
from gpufrag.reports import terminal
from running_server import running


@pytest.fixture
def agents(tmp_path):
    started = [FakeAgent(tmp_path, process_sample(rank)).start() for rank in (0, 1)]
    yield started
    for one in started:
        one.die()


def test_folder_is_shown_as_a_table(cli, tmp_path, agents) -> None:
    lines = cli.text("top", tmp_path, "--sort", "rank", "--reverse").splitlines()
    assert lines[0].split()[:3] == ["rank", "device", "state"]
    assert [line.split()[0] for line in lines[1:]] == ["0", "1"]


def test_json_is_filtered(cli, tmp_path, agents) -> None:
    found = json.loads(cli.text("top", tmp_path, "--json", "--filter", "rank=1"))
    assert [row["rank"] for row in found["devices"]] == ["1"]
    assert found["devices"][0]["ratio"] > 0


def test_empty_folder_has_no_ranks(cli, tmp_path) -> None:
    assert cli.text("top", tmp_path) == "No ranks.\n"


def test_sidecar_is_scraped(cli, tmp_path, agents) -> None:
    from gpufrag.config.sidecar import NvmlSettings, ServeConfig
    from gpufrag.sidecar.server import Sidecar

    config = ServeConfig(nvml=NvmlSettings(enabled=False))
    with running(Sidecar(config, lambda _: tmp_path, lambda: config).service()) as one:
        lines = cli.text("top", one.url().rstrip("/")).splitlines()
    assert len(lines) == 3


def test_infinite_ratio_is_null_in_json(cli, monkeypatch) -> None:
    from gpufrag.commands import top
    from gpufrag.metrics.scraped import RankRow

    row = RankRow("0", "0", free_total=1e19, largest_allocatable=5e-324)
    monkeypatch.setattr(top, "_scraper", lambda address, options: lambda: [row])
    text = cli.text("top", "http://127.0.0.1:1", "--json")
    assert "Infinity" not in text
    assert json.loads(text)["devices"][0]["ratio"] is None


def test_plain_table_repeats_without_textual(cli, tmp_path, agents, monkeypatch, capsys) -> None:
    from gpufrag.commands import top

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "gpufrag.reports.top_screen", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(terminal, "bold", lambda *_: str)
    monkeypatch.setattr(top, "_pause", stop)
    code, out, _ = cli.run("top", tmp_path)
    assert code == 130
    assert "pip install 'gpufrag[top]'" in out
    assert "rank" in out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--sort", "speed"], 2, "no column 'speed'"),
        (["--filter", "speed>1"], 2, "is not a condition"),
        (["--interval", "10ms"], 2, "--interval must be at least 100ms"),
        (["/nowhere"], 1, "/nowhere: no such folder"),
        (["/nowhere", "--bearer-file", "x"], 2, "require the address of a sidecar"),
        (["http://127.0.0.1:1"], 1, "connection refused"),
    ],
)
def test_bad_call_is_one_line(cli, words, code, text) -> None:
    found, error = cli.refusal("top", *words)
    assert found == code
    assert text in error
