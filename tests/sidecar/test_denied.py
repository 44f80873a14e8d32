"""A sidecar without access to the ranks (another user's, for example) reports it where people look."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from fake_agents import FakeAgent, process_sample
from gpufrag.config.sidecar import NvmlSettings, ServeConfig
from gpufrag.sidecar import processes
from gpufrag.sidecar.server import Sidecar
from running_server import PATIENCE, Running, running


@pytest.fixture
def denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two agents; access to rank 1 is denied. Root has access to all, so the denial is simulated."""
    agents = [FakeAgent(tmp_path, process_sample(rank)).start() for rank in range(2)]
    listens = processes.listens

    def refuse_one(path: Path) -> bool:
        if path == agents[1].socket:
            raise PermissionError(13, "Permission denied", str(path))
        return listens(path)

    monkeypatch.setattr(processes, "listens", refuse_one)
    config = ServeConfig(nvml=NvmlSettings(enabled=False))
    with running(Sidecar(config, lambda _: tmp_path, lambda: config).service()) as one:
        yield one
    for agent in agents:
        agent.die()


def test_readiness_counts_denied_ranks_with_the_remedy(denied: Running) -> None:
    deadline = time.monotonic() + PATIENCE
    while (answer := denied.get("/-/ready")).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert answer.text.startswith("ready, but ranks denied: 1; run the sidecar as the job's user, or make the")
    assert "fsGroup" in answer.text
    assert answer.text.count("\n") == 1


def test_page_counts_denied_ranks(denied: Running) -> None:
    assert "1 alive, 0 dead, 1 denied" in denied.get("/").text
