"""The sidecar over HTTP, in a thread of the test's process."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from fake_agents import FakeAgent
from gpufrag import metrics
from gpufrag.config.sidecar import FolderSettings, MetricsSettings, NvmlSettings, ServeConfig
from gpufrag.sidecar import processes, server
from gpufrag.sidecar.procfs import AgentProcess
from gpufrag.wire.folder import FileName, ReportName
from gpufrag.wire.oom_report import OomReport, encode
from gpufrag.wire.sample import Identity
from helpers import TESTS, wait_until
from running_server import Running, running, sidecar_of

ROOT = TESTS.parent
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Running]:
    with running(sidecar_of(tmp_path).service()) as one:
        yield one


def request(path: str, method: str = "GET", **headers: str) -> str:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *map(": ".join, headers.items())]
    return "\r\n".join([*lines, "", ""])


def values(text: str, name: str) -> dict[str, float]:
    """Of one metric, by rank (or by all labels, if it has none)."""
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {sample.labels.get("rank", str(sample.labels)): sample.value for sample in samples}


def test_scrape_has_every_rank(served: Running, agents: list[FakeAgent]) -> None:
    answer = served.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert values(answer.text, "gpufrag_up") == {"0": 1, "1": 1}
    assert values(answer.text, "gpufrag_steps_total") == {"0": 120, "1": 120}


def test_scrape_without_detail_has_no_histograms(tmp_path: Path, agents: list[FakeAgent]) -> None:
    with running(sidecar_of(tmp_path, metrics=MetricsSettings(detail=False)).service()) as one:
        without = one.get("/metrics").text
    assert "_bucket" not in without
    assert values(without, "gpufrag_up") == {"0": 1, "1": 1}


def test_openmetrics_is_sent_on_request(served: Running, agents: list[FakeAgent]) -> None:
    answer = served.get("/metrics", headers={"accept": f"{OPENMETRICS},text/plain;q=0.5"})
    assert answer.headers["content-type"] == f"{OPENMETRICS}; charset=utf-8"
    families = {family.name for family in openmetrics.text_string_to_metric_families(answer.text)}
    assert {"gpufrag_up", "gpufrag_steps", "gpufrag_allocator_largest_allocatable_bytes"} <= families


@pytest.mark.parametrize(
    ("accepted", "zipped"), [("gzip, deflate", True), ("br;q=1, *", True), ("gzip;q=0", False), ("", False)]
)
def test_gzip_is_sent_on_request(served: Running, agents: list[FakeAgent], accepted: str, zipped: bool) -> None:
    head, _, body = served.send(request("/metrics", **{"Accept-Encoding": accepted})).partition(b"\r\n\r\n")
    assert (b"content-encoding: gzip" in head) is zipped
    assert b"gpufrag_up" in (gzip.decompress(body) if zipped else body)
    assert f"content-length: {len(body)}\r\n".encode() in head + b"\r\n"


def test_exited_rank_keeps_only_its_counters(served: Running, agents: list[FakeAgent]) -> None:
    agents[1].die()
    text = served.get("/metrics").text
    assert values(text, "gpufrag_up") == {"0": 1, "1": 0}
    assert set(values(text, "gpufrag_steps_total")) == {"0", "1"}
    assert set(values(text, "gpufrag_allocator_limit_bytes")) == {"0"}


def test_values_of_a_rank_come_from_one_sample(served: Running, agents: list[FakeAgent]) -> None:
    for step in range(20):
        agents[0].publish(steps=step, time=float(step))
        text = served.get("/metrics").text
        assert values(text, "gpufrag_steps_total")["0"] == values(text, "gpufrag_sample_timestamp_seconds")["0"] == step


@pytest.mark.parametrize("path", ["/", "/metrics", "/-/healthy", "/-/ready"])
def test_head_has_no_body(served: Running, path: str) -> None:
    assert re.fullmatch(rb"HTTP/1.1 (200|503) .*\r\n\r\n", served.send(request(path, "HEAD")), re.DOTALL)


@pytest.mark.parametrize(
    "path",
    [
        *("/none", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/metrics/../../etc/passwd", "/page/style.css"),
        *("/%00", "/runbooks/None", "/runbooks/%2e%2e", "/runbooks/%2e%2e%2fREADME", "/runbooks/GpuMemoryTight.md.md"),
    ],
)
def test_other_paths_are_not_found(served: Running, path: str) -> None:
    assert served.send(request(path)).startswith(b"HTTP/1.1 404 ")


def test_page_has_its_content_policy(served: Running, agents: list[FakeAgent]) -> None:
    answer = served.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
    assert "2 alive, 0 dead" in answer.text


def test_oom_report_has_a_page(served: Running, tmp_path: Path) -> None:
    report = OomReport(Identity("host", 7, 1.0, rank=3), 2, 1000.0, 0, 3 << 30, "fragmentation", ("no block fits",))
    name = ReportName(FileName.of(report.identity), report.number).file
    (tmp_path / name).write_bytes(encode(replace(report, time=time.time())))
    assert f'href="oom/{name}"' in served.get("/").text
    answer = served.get(f"/oom/{name}")
    assert "no block fits" in answer.text
    assert "script-src" not in answer.headers["content-security-policy"]
    assert served.get("/oom/none").status_code == 404


@pytest.mark.parametrize("name", [path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")])
def test_runbook_is_served(served: Running, name: str) -> None:
    for path in (f"/runbooks/{name}", f"/runbooks/{name}.md"):
        assert f"# {name}" in served.get(path).text
    assert name in served.get("/runbooks/").text


def test_page_explains_missing_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "agent_processes", lambda: [AgentProcess(7, "/other")])
    with running(sidecar_of(tmp_path).service()) as one:
        assert "write to another folder (/other)" in one.get("/").text


def test_sidecar_is_ready_after_the_first_reading(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(server, "FIRST_READ_SECONDS", 0.02)
    folder = tmp_path / "later"
    with running(sidecar_of(folder).service()) as served:
        assert served.get("/-/healthy").text == "ok\n"
        wait_until(lambda: "no such folder yet" in served.get("/-/ready").text)
        assert served.get("/-/ready").status_code == 503
        folder.mkdir()
        wait_until(lambda: served.get("/-/ready").status_code == 200)


def test_missing_folder_does_not_empty_the_scrape(tmp_path: Path) -> None:
    with running(sidecar_of(tmp_path / "later").service()) as served:
        text = served.get("/metrics").text
        assert values(text, "gpufrag_collector_success") == {"{'collector': 'folder'}": 0, "{'collector': 'join'}": 1}
        assert "gpufrag_build_info" in text
        assert served.get("/").status_code == 200


def test_unrenderable_rank_does_not_hide_the_others(
    served: Running, agents: list[FakeAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = metrics.render

    def faulty(fleet: Any, accept: str = "", **options: bool) -> tuple[str, bytes]:
        if any(rank.sample.identity.rank == 1 for rank in fleet.ranks):
            raise ZeroDivisionError
        return real(fleet, accept, **options)

    monkeypatch.setattr(metrics, "render", faulty)
    text = served.get("/metrics").text
    assert values(text, "gpufrag_up") == {"0": 1}
    assert values(text, "gpufrag_collector_success")["{'collector': 'render'}"] == 0


def test_folder_is_cleaned_without_scrapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REREAD_SECONDS", 0.02)
    agent = FakeAgent(tmp_path)
    with running(sidecar_of(tmp_path, folder=FolderSettings(dead_process_retention=0.1)).service()):
        agent.publish()
        wait_until(lambda: not agent.file.exists())


def test_reload_changes_the_folder(tmp_path: Path, agents: list[FakeAgent]) -> None:
    (tmp_path / "other").mkdir()
    one = sidecar_of(tmp_path / "other")
    one._load = lambda: ServeConfig(FolderSettings(path=tmp_path), nvml=NvmlSettings(enabled=False))
    with running(one.service()) as served:
        assert values(served.get("/metrics").text, "gpufrag_up") == {}
        wait_until(lambda: served.get("/-/ready").status_code == 200)
        served.call(served.server.reload)
        wait_until(lambda: values(served.get("/metrics").text, "gpufrag_up") == {"0": 1, "1": 1})
        assert served.get("/-/ready").status_code == 200  # it stays ready meanwhile


def test_simultaneous_scrapes_are_answered(served: Running, agents: list[FakeAgent]) -> None:
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(served.send, [request("/metrics")] * 10))
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)


def test_denied_ranks_are_counted_with_the_remedy(
    served: Running, agents: list[FakeAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may connect to every socket, so the denial is simulated."""
    listens = processes.listens

    def refuse_one(path: Path) -> bool:
        if path == agents[1].socket:
            raise PermissionError(13, "Permission denied", str(path))
        return listens(path)

    monkeypatch.setattr(processes, "listens", refuse_one)
    assert "1 alive, 0 dead, 1 denied" in served.get("/").text
    wait_until(lambda: "ready, but" in served.get("/-/ready").text)
    text = served.get("/-/ready").text
    assert text.startswith("ready, but ranks denied: 1; run the sidecar as the job's user, or give both")
    assert ("fsGroup" in text, text.count("\n")) == (True, 1)
