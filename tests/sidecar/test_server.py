"""The sidecar over HTTP, in a thread of the test's process."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from fake_agents import FakeAgent, process_sample
from gpufrag import metrics
from gpufrag.config.sidecar import FolderSettings, MetricsSettings, NvmlSettings, ServeConfig
from gpufrag.sidecar import server
from gpufrag.sidecar.procfs import AgentProcess
from gpufrag.sidecar.server import Sidecar
from gpufrag.wire.folder import FileName, ReportName
from gpufrag.wire.oom_report import OomReport, encode
from gpufrag.wire.sample import Identity
from helpers import TESTS
from running_server import PATIENCE, Running, received, running

ROOT = TESTS.parent
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def sidecar(at: Path, **changes: Any) -> Sidecar:
    config = replace(ServeConfig(nvml=NvmlSettings(enabled=False)), **changes)
    return Sidecar(config, lambda config: config.folder.path or at, lambda: config)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[FakeAgent]]:
    agents = [FakeAgent(tmp_path, process_sample(rank)).start() for rank in range(2)]
    yield agents
    for agent in agents:
        agent.die()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Running]:
    with running(sidecar(tmp_path).service()) as one:
        yield one


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
    with running(sidecar(tmp_path, metrics=MetricsSettings(detail=False)).service()) as one:
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
    with served.connect() as client:
        client.sendall(
            f"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: {accepted}\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = received(client).partition(b"\r\n\r\n")
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


def test_head_has_no_body(served: Running) -> None:
    for path in ("/", "/metrics", "/-/healthy", "/-/ready"):
        with served.connect() as client:
            client.sendall(f"HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = received(client)
        assert re.match(rb"HTTP/1.1 (200|503) ", answer)
        assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "path",
    ["/none", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/metrics/../../etc/passwd", "/page/style.css", "/%00"],
)
def test_other_paths_are_not_found(served: Running, path: str) -> None:
    with served.connect() as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert received(client).startswith(b"HTTP/1.1 404 ")


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


@pytest.mark.parametrize("name", ["None", "%2e%2e", "%2e%2e%2fREADME", "GpuMemoryTight.md.md"])
def test_other_runbook_is_not_found(served: Running, name: str) -> None:
    assert served.get(f"/runbooks/{name}").status_code == 404


def test_page_explains_missing_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "agent_processes", lambda: [AgentProcess(7, "/other")])
    with running(sidecar(tmp_path).service()) as one:
        assert "write to another folder (/other)" in one.get("/").text


def test_sidecar_is_ready_after_the_first_reading(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(server, "FIRST_READ_SECONDS", 0.02)
    folder = tmp_path / "later"
    with running(sidecar(folder).service()) as served:
        assert served.get("/-/healthy").text == "ok\n"
        wait_until(lambda: "no such folder yet" in served.get("/-/ready").text)
        assert served.get("/-/ready").status_code == 503
        folder.mkdir()
        wait_until(lambda: served.get("/-/ready").status_code == 200)


def test_missing_folder_does_not_empty_the_scrape(tmp_path: Path) -> None:
    with running(sidecar(tmp_path / "later").service()) as served:
        text = served.get("/metrics").text
        assert values(text, "gpufrag_collector_success") == {
            "{'collector': 'folder'}": 0,
            "{'collector': 'join'}": 1,
        }
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
    with running(sidecar(tmp_path, folder=FolderSettings(dead_process_retention=0.1)).service()):
        agent.publish()
        wait_until(lambda: not agent.file.exists())


def test_reload_changes_the_folder(tmp_path: Path, agents: list[FakeAgent]) -> None:
    (tmp_path / "other").mkdir()
    one = sidecar(tmp_path / "other")
    one._load = lambda: ServeConfig(FolderSettings(path=tmp_path), nvml=NvmlSettings(enabled=False))
    with running(one.service()) as served:
        assert values(served.get("/metrics").text, "gpufrag_up") == {}
        wait_until(lambda: served.get("/-/ready").status_code == 200)
        served.call(served.server.reload)
        wait_until(lambda: values(served.get("/metrics").text, "gpufrag_up") == {"0": 1, "1": 1})
        assert served.get("/-/ready").status_code == 200  # it stays ready meanwhile


def test_simultaneous_scrapes_are_answered(served: Running, agents: list[FakeAgent]) -> None:
    clients = [served.connect() for _ in range(10)]
    for client in clients:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    for client in clients:
        assert received(client).startswith(b"HTTP/1.1 200 ")
        client.close()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
