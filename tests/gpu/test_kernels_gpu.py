"""What depends on the results of real kernels."""

import time
from pathlib import Path
from typing import Any

import pytest

from gpufrag import agent

torch = pytest.importorskip("torch")

PATIENCE = 60.0
"""Seconds."""
RECORDINGS = 20

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]


def test_compiled_model_computes_the_same_under_the_agent(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).cuda()
    agent.start(interval=0.05, budget=1.0, folder=tmp_path)
    compiled = torch.compile(model, mode="reduce-overhead")
    batch = torch.randn(32, 128, device="cuda")
    with torch.no_grad():
        expected = model(batch)
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            found = compiled(batch).clone()
    agent.stop()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_graphs_compute_the_same_while_steps_are_recorded(tmp_path: Path) -> None:
    """Every step captures a new graph and replays it and its predecessors; the agent records every 50 ms."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()
    weight = torch.nn.Parameter(torch.zeros(1024, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    graphs: list[tuple[Any, Any, Any]] = []
    agent.start(interval=0.05, budget=1.0, folder=tmp_path)
    end, recorded = time.monotonic() + PATIENCE, 0
    with torch.no_grad():
        model(torch.zeros(64, 256, device="cuda"))  # libraries initialize before a capture
    while recorded < RECORDINGS and time.monotonic() < end:
        batch = torch.zeros(64, 256, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            out = model(batch)
        graphs = [*graphs[-7:], (graph, batch, out)]
        for replayed, static, found in graphs:
            static.normal_()
            replayed.replay()
            with torch.no_grad():
                torch.testing.assert_close(found, model(static), rtol=1e-3, atol=1e-3)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        sample = agent.latest()
        recorded = sample.health.recordings.get("recorded", 0) if sample else 0
    agent.stop()
    assert recorded >= RECORDINGS
