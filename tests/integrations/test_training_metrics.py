"""Memory metrics in the training log: what they are, and that both frameworks log them with the loss."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpufrag
from gpufrag import agent
from gpufrag.agent import lifecycle
from gpufrag.integrations.training_metrics import TrainingMetrics
from helpers import TESTS
from integrations.scripted_agent import record, sample_at_peak
from recorded_steps import GIB

HERE = Path(__file__).parent


@pytest.fixture
def metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainingMetrics]:
    sample = sample_at_peak()
    record(tmp_path, sample)
    monkeypatch.setattr(agent, "start", lambda: None)
    monkeypatch.setattr(agent, "latest", lambda: sample)
    monkeypatch.setattr(lifecycle, "folder", lambda: tmp_path)
    one = TrainingMetrics("memory/")
    yield one
    one.close()


def test_values_have_ratio_margin_need_and_errors(metrics: TrainingMetrics) -> None:
    deadline = time.monotonic() + 60
    while "memory/needed_bytes" not in (found := metrics.values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    peak = next(one for one in sample_at_peak().devices[0].snapshots if one.at == "peak")
    assert found.keys() == {"memory/ratio_at_peak", "memory/needed_bytes", "memory/margin_bytes", "memory/ooms"}
    assert found["memory/ratio_at_peak"] == peak.measured.ratio
    assert found["memory/margin_bytes"] == 20 * GIB - found["memory/needed_bytes"]
    assert found["memory/ooms"] == 2


def test_without_agent_there_is_no_value(metrics: TrainingMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "latest", lambda: None)
    assert metrics.values() == {}


def test_unpublished_process_has_no_need(metrics: TrainingMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "folder", lambda: None)
    assert metrics.values().keys() == {"memory/ratio_at_peak", "memory/ooms"}


def test_analysis_can_be_left_to_the_sidecar(metrics: TrainingMetrics) -> None:
    own = TrainingMetrics(analyse=False)
    assert own.values().keys() == {"gpufrag/ratio_at_peak", "gpufrag/ooms"}


def test_copy_of_the_agent_alone_has_no_need(metrics: TrainingMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpufrag.sidecar.analysis", None)
    assert metrics.values().keys() == {"memory/ratio_at_peak", "memory/ooms"}


def _needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed: the callback was NOT tested")


@pytest.mark.real
@pytest.mark.parametrize(
    "program",
    [
        pytest.param("log_huggingface.py", marks=_needs("torch", "transformers", "accelerate")),
        pytest.param("log_lightning.py", marks=_needs("torch", "lightning")),
    ],
)
def test_framework_logs_the_metrics_with_the_loss(program: str, tmp_path: Path) -> None:
    path = [str(Path(gpufrag.__file__).parents[1]), str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONWARNINGS": "ignore", "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    command = [sys.executable, str(HERE / "scripted_agent.py"), str(HERE / program), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout.splitlines()[-1])
    assert lines[0].keys() >= {"loss", "gpufrag/ratio_at_peak", "gpufrag/ooms"}
    assert lines[0]["gpufrag/ooms"] == 2
    last = lines[-1]
    assert last["gpufrag/margin_bytes"] == pytest.approx(20 * GIB - last["gpufrag/needed_bytes"], rel=1e-6)
