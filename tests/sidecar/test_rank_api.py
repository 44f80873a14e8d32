"""The buttons of the page: memory map of a recorded step, snapshot, recording and report of a rank."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from gpufrag.config.sidecar import ControlSettings
from gpufrag.sidecar.step_report import headers
from gpufrag.wire import control_client
from gpufrag.wire.folder import FileName
from recorded_steps import recorded_step
from running_server import PATIENCE, Running, running, sidecar_of
from sidecar.controlled_rank import Rank, controlled
from staged_programs import growing_cache, run

TOKEN = "0123456789abcdef0123"
RIGHT = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    return tmp_path / "ranks"


@pytest.fixture
def rank(folder: Path) -> Iterator[Rank]:
    with controlled(folder) as one:
        yield one


@pytest.fixture
def served(folder: Path, tmp_path: Path) -> Iterator[Running]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with running(sidecar_of(folder, control=ControlSettings(token)).service()) as one:
        yield one


def post(one: Running, action: str, headers: dict[str, str] = RIGHT, **body: object) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=60) as client:
        return client.post(one.url(f"/v1/ranks/{action}"), headers=headers, json=body)


def test_snapshot_is_taken(served: Running, rank: Rank) -> None:
    answer = post(served, "snapshot", process=rank.agent.name.stem)
    assert (answer.status_code, answer.json()) == (200, {"text": "snapshot taken"})
    assert len(rank.orders) == 1


def test_recording_is_the_answer_and_leaves_no_file(served: Running, rank: Rank) -> None:
    answer = post(served, "record", process=rank.agent.name.stem, steps=2)
    assert pickle.loads(answer.content) == run(growing_cache)  # noqa: S301 (ours)
    assert [(order["steps"], order["stacks"]) for order in rank.orders] == [(2, False)]
    assert not (rank.agent.folder / rank.agent.name.trace).exists()


def test_explain_makes_a_report(served: Running, rank: Rank) -> None:
    answer = post(served, "explain", process=rank.agent.name.stem)
    assert rank.orders[0]["stacks"] is True
    report = served.get("/" + answer.json()["report"])
    assert report.status_code == 200
    assert report.headers["content-security-policy"] == headers()["content-security-policy"]
    assert "/job/train.py:20 in step" in report.text
    assert served.get("/reports/another").status_code == 404


def test_rank_in_another_pid_namespace_is_reached(served: Running, rank: Rank, monkeypatch) -> None:
    """A container of the same pod: the kernel reports its processes as pid 0."""
    monkeypatch.setattr(control_client, "_CREDENTIALS", SimpleNamespace(size=12, unpack=lambda data: (0, 0, 0)))
    assert post(served, "snapshot", process=rank.agent.name.stem).status_code == 200
    assert post(served, "record", process=rank.agent.name.stem).status_code == 200


def test_refusal_of_the_rank_is_passed_on(served: Running, rank: Rank) -> None:
    answer = post(served, "record", process=rank.agent.name.stem, steps=9)
    assert (answer.status_code, answer.json()["text"]) == (409, "a recording is underway")


@pytest.mark.parametrize("process", ["../../etc/passwd", "host-1", "", "a/b-1-2"])
def test_bad_name_is_refused(served: Running, rank: Rank, process: str) -> None:
    assert post(served, "record", process=process).status_code == 400
    assert rank.orders == []


def test_too_many_steps_are_refused(served: Running, rank: Rank) -> None:
    assert post(served, "record", process=rank.agent.name.stem, steps=11).status_code == 400


def test_ended_process_is_unavailable(served: Running) -> None:
    assert post(served, "snapshot", process="host-1-2000").status_code == 503


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}])
def test_wrong_token_is_refused(served: Running, rank: Rank, headers: dict[str, str]) -> None:
    for action in ("snapshot", "record", "explain"):
        assert post(served, action, headers, process=rank.agent.name.stem).status_code == 401
    assert httpx.get(served.url("/v1/ranks"), headers=headers, trust_env=False).status_code == 401
    assert httpx.get(served.url("/v1/ranks"), headers=RIGHT, trust_env=False).status_code == 204
    assert rank.orders == []


def test_without_token_there_are_no_buttons_and_no_paths(folder: Path, rank: Rank) -> None:
    with running(sidecar_of(folder).service()) as one:
        assert '<button type="button" data-action' not in one.get().text
        assert post(one, "record", process=rank.agent.name.stem).status_code == 404


def test_page_with_token_has_buttons_of_living_ranks(served: Running, rank: Rank) -> None:
    text = served.get().text
    assert text.count(f'data-process="{rank.agent.name.stem}"') == 3
    assert 'id="token"' in text


def test_memory_map_of_the_latest_recording(served: Running, rank: Rank) -> None:
    (rank.agent.folder / rank.agent.name.recording).write_bytes(recorded_step())
    with httpx.Client(trust_env=False, timeout=60) as client:
        page = client.get(served.url(f"/steps/{rank.agent.name.recording}"))
    assert page.status_code == 200
    assert f"last recorded step of process {os.getpid()}" in page.text
    assert page.headers["content-security-policy"] == headers()["content-security-policy"]


def test_broken_recording_has_no_map(served: Running, rank: Rank) -> None:
    (rank.agent.folder / rank.agent.name.recording).write_bytes(b"gpufrag recording\n" + b"\xff" * 99)
    with httpx.Client(trust_env=False, timeout=PATIENCE * 6) as client:
        page = client.get(served.url(f"/steps/{rank.agent.name.recording}"))
    assert page.status_code == 503
    assert page.text.startswith("no report: ")


@pytest.mark.parametrize("name", ["host-1-2000.step", "..%2Fx.step", "nonsense"])
def test_map_of_an_unknown_process_is_not_found(served: Running, rank: Rank, name: str) -> None:
    assert served.get(f"/steps/{name}").status_code == 404
    assert FileName.parse("host-1-2000.step") is not None
