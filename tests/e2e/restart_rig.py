"""The programs of one host: a supervised job, sidecar, Prometheus, Alertmanager, restarter."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import monitoring
from helpers import TESTS
from monitoring import Prometheus, python
from restarter.restarter_process import TOKEN, Process, write_config
from supervisor.supervised_process import EXPORTER

JOB = "train"
TRAINER = Path(__file__).with_name("simulated_trainer.py")
ALERTMANAGER = TESTS.parent / "deploy" / "alertmanager" / "alertmanager.yml"
QUICK = ("interval=1s", "window=3s", "rate_window=6s", "hold=2s", "keep_firing=1s", "event=30s", "memory=30s")


@functools.cache
def python_with_torch() -> str:
    """Return an interpreter with torch: this one, or $GPUFRAG_TORCH_PYTHON. Skips the test if there is none."""
    for interpreter in filter(None, (os.environ.get("GPUFRAG_TORCH_PYTHON"), sys.executable)):
        if subprocess.run([interpreter, "-c", "import torch.distributed.run"], capture_output=True).returncode == 0:
            return interpreter
    pytest.skip("no torch: install it, or name an interpreter that has it by GPUFRAG_TORCH_PYTHON")


@dataclass
class Host:
    """`folder` holds logs and configs; the job's own files are in `folder/job`."""

    folder: Path
    stack: ExitStack

    def run_job(self, *options: object) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Run two ranks under `gpufrag run` with these options while the context lasts."""
        for name in ("job", "agents"):
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)
        launcher = [python_with_torch(), "-m", "torch.distributed.run", "--nproc-per-node", 2, TRAINER]
        limits = ["--interval", 1, "--budget", 0.5]  # a heap of Python's takes longer to read than torch's
        environment = {"TRAINER_DIR": str(self.folder / "job"), "PYTHONPATH": str(EXPORTER), "OMP_NUM_THREADS": "1"}
        command = python("-m", "gpufrag", "run", "--folder", self.folder / "agents", *limits, *options)
        return monitoring.process([*command, "--", *launcher], self.folder / "job.log", environment)

    def start_sidecar(self) -> int:
        """Return its port. Its control endpoint accepts the token."""
        port = monitoring.free_port()
        (self.folder / "control-token").write_text(TOKEN)
        config = self.folder / "sidecar.yaml"
        config.write_text(yaml.safe_dump({"control": {"token_file": "control-token"}}))
        where = ["--folder", self.folder / "agents", "--port", port]
        command = python("-m", "gpufrag", "serve", "--config", config, *where)
        self.stack.enter_context(monitoring.process(command, self.folder / "sidecar.log"))
        return port

    def discover(self, sidecar: int, **labels: str) -> None:
        """Write the sidecar's target for Prometheus."""
        targets = [{"targets": [f"127.0.0.1:{sidecar}"], "labels": {"job_name": JOB, **labels}}]
        draft = self.folder / "targets.tmp"
        draft.write_text(json.dumps(targets))
        draft.replace(self.folder / "targets.json")

    def start_prometheus(self, *alertmanagers: str) -> Prometheus:
        settings = [word for timing in QUICK for word in ("--set", f"timing.{timing}")]
        command = python("-m", "gpufrag", "mixin", "build", "--rules-only", "--out", self.folder, *settings)
        subprocess.run([str(word) for word in command], check=True, capture_output=True)
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]},
            "scrape_configs": [{"job_name": "gpufrag", "file_sd_configs": [{"files": ["targets.json"]}]}],
        }
        return self.stack.enter_context(monitoring.prometheus(self.folder, config))

    def start_alertmanager(self, name: str, *ports: int) -> str:
        """Start it with the shipped config and short intervals, for restarters at these ports. Return its host:port."""
        folder = self._own(name)
        (folder / "token").write_text(TOKEN)
        config: dict[str, Any] = yaml.safe_load(ALERTMANAGER.read_text())
        for route in (config["route"], *config["route"]["routes"]):
            route |= {"group_wait": "1s", "group_interval": "2s", "repeat_interval": "3s"}
        (restarter,) = [row for row in config["receivers"] if row["name"] == "restarter"]
        (hook,) = restarter["webhook_configs"]
        hook["http_config"]["authorization"]["credentials_file"] = str(folder / "token")
        restarter["webhook_configs"] = [{**hook, "url": f"http://127.0.0.1:{port}/v1/alerts"} for port in ports]
        return self.stack.enter_context(monitoring.alertmanager(folder, config))

    def start_restarter(self, port: int, *options: str, **config: Any) -> Process:
        folder = self._own(f"restarter-{port}")
        path = write_config(folder, web={"listen_address": f"127.0.0.1:{port}"}, **config)
        process = Process(folder, "--config", str(path), *options)
        self.stack.callback(process.kill)
        process.wait_until_it_listens()
        return process

    def doctor(self, sidecar: int, prometheus: Prometheus) -> dict[str, str]:
        """Return the text of each check that is not ok."""
        where = ["--host", "--folder", self.folder / "agents", "--sidecar", f"http://127.0.0.1:{sidecar}"]
        command = python("-m", "gpufrag", "doctor", *where, "--prometheus", prometheus.url, "--json")
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
        return {row["check"]: row["text"] for row in json.loads(done.stdout) if row["result"] != "ok"}

    def log_of(self, rank: int) -> list[dict[str, Any]]:
        """Return the complete lines that a rank wrote."""
        path = self.folder / "job" / f"rank{rank}.log"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def _own(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        return folder


def ratio(prometheus: Prometheus) -> float:
    """Return the ratio of the job's worst rank. LookupError if there is none."""
    (value,) = prometheus.values(f'job:gpufrag_fragmentation:max_ratio{{job_name="{JOB}"}}') or [None]
    if value is None:
        raise LookupError("no ratio yet")
    return value


def trains_again(host: Host) -> bool:
    """Return whether every rank took a step after its second start."""
    for log in (host.log_of(rank) for rank in (0, 1)):
        events = [line["event"] for line in log]
        if events.count("begin") < 2 or events[-1] == "begin":
            return False
    return True


def check_that_no_step_was_lost(host: Host) -> None:
    """All ranks saved at one step and continued from it."""
    logs = [host.log_of(rank) for rank in (0, 1)]
    assert len({saved(log)["step"] for log in logs}) == 1
    for log in logs:
        _check_steps(log)


def saved(log: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the line of a rank's only save."""
    (line,) = [line for line in log if line["event"] == "save"]
    return line


def _check_steps(log: list[dict[str, Any]]) -> None:
    """No step is missing or repeated, and the second run begins with the saved weights."""
    first, second = [line for line in log if line["event"] == "begin"]
    assert first["step"] == 0
    assert (second["step"], second["weights"]) == (saved(log)["step"], saved(log)["weights"])
    steps = [line["step"] for line in log if line["event"] == "step"]
    assert steps == list(range(1, len(steps) + 1))
    assert steps[-1] > saved(log)["step"], "training goes on"
