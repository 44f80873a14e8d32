"""A restarter for processes or Slurm, with its worker in a thread and real time."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpufrag.restarter import server, settings
from gpufrag.restarter.alerts import Alert

PATIENCE_S = 60.0


def alert(job_name: str, **changes: Any) -> Alert:
    labels = {"alertname": "GpuMemoryFragmented", "gpufrag_action": "restart", "job": "gpufrag", "job_name": job_name}
    made = Alert("firing", labels, {"description": "A ratio of 9."}, "cafe", time.time() - 400)
    return replace(made, **changes)


class ThreadedRestarter:
    def __init__(self, config: settings.RestarterConfig) -> None:
        self.stream = io.StringIO()
        self.platform = server.connect(config)
        self.worker = server.assemble(config, self.platform, stream=self.stream).worker
        self._thread = threading.Thread(target=self.worker.run, daemon=True)

    def send(self, *alerts: Alert) -> None:
        assert self.worker.offer(alerts)

    @property
    def decisions(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    @property
    def outcomes(self) -> list[str]:
        return [f"{one['outcome']} {one['reason']}" for one in self.decisions]

    def until(self, *outcomes: str) -> None:
        """Wait until exactly these decisions have been made."""
        eventually(lambda: self.outcomes == list(outcomes), lambda: f"{self.decisions}")

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.worker.stop()
        self._thread.join(PATIENCE_S)


@contextmanager
def restarting(folder: Path, **raw: Any) -> Iterator[ThreadedRestarter]:
    """Run a restarter whose config is `raw`, with defaults that suit tests."""
    path = folder / "restarter.yaml"
    defaults = {
        "policy": {"dry_run": False},
        "checkpoint": {"on_timeout": "restart"},
        "restart": {"run_timeout": "40s"},
    }
    path.write_text(json.dumps({"state_file": "state.json", **defaults, **raw}), encoding="utf-8")
    restarter = ThreadedRestarter(settings.load(path))
    restarter.start()
    try:
        yield restarter
    finally:
        restarter.end()


def eventually(condition: Callable[[], Any], otherwise: Callable[[], str] = lambda: "it never happened") -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.05)
    raise AssertionError(otherwise())
