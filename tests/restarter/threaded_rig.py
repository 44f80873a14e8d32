"""A restarter for the processes of this host, with its worker in a thread and real time."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpufrag.restarter import server, settings
from restarter.worker_rig import job_alert
from supervisor.supervised_process import PATIENCE_S, eventually

CONFIG: dict[str, Any] = {
    "target": "process",
    "process": {"folder": "agents"},
    "state_file": "state.json",
    "policy": {"dry_run": False},
    "checkpoint": {"on_timeout": "restart"},
    "restart": {"run_timeout": "40s"},
}


class ThreadedRestarter:
    def __init__(self, config: settings.RestarterConfig) -> None:
        self.stream = io.StringIO()
        self.worker = server.assemble(config, server.connect(config), stream=self.stream).worker
        self.thread = threading.Thread(target=self.worker.run, daemon=True)

    def send(self, *job_names: str) -> None:
        assert self.worker.offer(map(job_alert, job_names))

    @property
    def decisions(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def until(self, *outcomes: str) -> None:
        """Wait until exactly these decisions have been made."""
        eventually(
            lambda: [f"{one['outcome']} {one['reason']}" for one in self.decisions] == list(outcomes),
            lambda: f"{self.decisions}",
        )


@contextmanager
def restarting(folder: Path, **changes: Any) -> Iterator[ThreadedRestarter]:
    """Run a restarter whose config is CONFIG with these changes."""
    path = folder / "restarter.yaml"
    path.write_text(json.dumps({**CONFIG, **changes}), encoding="utf-8")
    restarter = ThreadedRestarter(settings.load(path))
    restarter.thread.start()
    try:
        yield restarter
    finally:
        restarter.worker.stop()
        restarter.thread.join(PATIENCE_S)
