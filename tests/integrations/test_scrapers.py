"""The configs of docs/training-logs.md, with the real programs: W&B, MLflow and Prometheus' own check."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fake_agents import FakeAgent, process_sample
from helpers import TESTS
from running_server import Running, running, sidecar_of

PAGE = (TESTS.parent / "docs" / "training-logs.md").read_text(encoding="utf-8")
EXAMPLES = TESTS.parent / "docs" / "examples"
ADDRESS = "http://127.0.0.1:9836"


def block(heading: str) -> str:
    """The first indented block below a heading of the page."""
    section = PAGE.split(f"## {heading}\n")[1]
    found = re.search(r"\n\n((?:    .*\n|\n(?=    ))+)", section)
    assert found
    return textwrap.dedent(found[1])


def needs(module: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed: its config was NOT tested")


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "ranks").mkdir()
    agent = FakeAgent(tmp_path / "ranks", process_sample(0)).start()
    with running(sidecar_of(tmp_path / "ranks").service()) as one:
        yield one
    agent.die()


def run_program(code: str, folder: Path, **environment: str) -> str:
    own = {"PYTHONPATH": os.pathsep.join([*sys.path, str(EXAMPLES)]), "PYTHONWARNINGS": "ignore", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**os.environ, **own, **environment}, capture_output=True,
        text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.real
@needs("wandb")
def test_wandb_reads_the_sidecar(sidecar: Running, tmp_path: Path) -> None:
    code = block("W&B").replace(ADDRESS, sidecar.url().rstrip("/"))
    code = code.replace("wandb.Settings(", "wandb.Settings(x_stats_sampling_interval=0.5, ")
    code += "import time\nfor step in range(8):\n    wandb.log({'loss': step}); time.sleep(0.5)\nwandb.finish()\n"
    run_program(code, tmp_path, WANDB_MODE="offline", WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*.wandb"))
    assert b"openmetrics.gpufrag.gpufrag_allocator_largest_allocatable_bytes" in written


@pytest.mark.real
@needs("mlflow")
def test_mlflow_logs_the_ranks(sidecar: Running, tmp_path: Path) -> None:
    code = block("MLflow").replace(ADDRESS, sidecar.url().rstrip("/"))
    code = code.replace("sidecar_metrics(run.info.run_id,", "sidecar_metrics(run.info.run_id, interval=0.5, address=")
    code = "import time\ndef train(): time.sleep(4)\n" + code
    code += "print(sorted(mlflow.get_run(run.info.run_id).data.metrics))\n"
    store = {"MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlflow", "MLFLOW_ALLOW_FILE_STORE": "true"}
    out = run_program(code, tmp_path, **store)
    assert "system/gpufrag_rank_0_ratio" in out
    assert "system/gpufrag_rank_0_stranded_bytes" in out


@pytest.mark.real
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: the collector's config was NOT checked")
def test_scrape_config_of_the_collector_is_valid(tmp_path: Path) -> None:
    config = yaml.safe_load(block("OpenTelemetry collector"))
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(config["receivers"]["prometheus"]["config"]))
    subprocess.run(["promtool", "check", "config", str(path)], check=True, capture_output=True)
    used = config["service"]["pipelines"]["metrics"]
    assert [set(used["receivers"]), set(used["exporters"])] == [set(config["receivers"]), set(config["exporters"])]
