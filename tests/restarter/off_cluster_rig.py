"""A receiver off Kubernetes, with its worker in a thread and real time."""

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

from gpufrag.restarter import backends as platforms
from gpufrag.restarter import server, settings
from gpufrag.restarter.alerts import Alert

PATIENCE_S = 60.0


def alert(job_name: str, **changes: Any) -> Alert:
    labels = {"alertname": "GpuMemoryFragmented", "gpufrag_action": "restart", "job": "gpufrag", "job_name": job_name}
    made = Alert("firing", labels, {"description": "A ratio of 9."}, "cafe", time.time() - 400)
    return replace(made, **changes)


class Receiver:
    """`offer` is what the webhook calls."""

    def __init__(self, config: settings.RestarterConfig) -> None:
        self.audit = io.StringIO()
        it = platforms.connect(config)
        self.cluster = it.cluster
        parts = server.assemble(
            it.config, it.cluster, "-", it.checkpointer, audit=self.audit, targets=it.targets, locate=it.locate
        )
        self.worker, self.webhook = parts.worker, parts.webhook
        self._thread = threading.Thread(target=self.worker.run, daemon=True)

    def send(self, *alerts: Alert) -> None:
        assert self.webhook.offer(alerts)

    @property
    def decisions(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit.getvalue().splitlines()]

    @property
    def told(self) -> list[str]:
        return [f"{one['outcome']} {one['reason']}" for one in self.decisions]

    def until(self, *told: str) -> None:
        """Exactly this has been decided."""
        eventually(lambda: self.told == list(told), lambda: f"{self.decisions}")

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.worker.stop()
        self._thread.join(PATIENCE_S)


@contextmanager
def receiving(folder: Path, **raw: Any) -> Iterator[Receiver]:
    """A receiver whose config is `raw` on top of what makes tests quick."""
    path = folder / "restarter.yaml"
    quick = {
        "policy": {"dry_run": False},
        "checkpoint": {"on_timeout": "restart"},
        "restart": {"poll": "100ms", "retry": "100ms", "run_timeout": "40s"},
    }
    path.write_text(json.dumps({"state_file": "state.json", **quick, **raw}), encoding="utf-8")
    receiver = Receiver(settings.load(path))
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.end()


def eventually(what: Callable[[], Any], otherwise: Callable[[], str] = lambda: "it never came") -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if answer := what():
            return answer
        time.sleep(0.05)
    raise AssertionError(otherwise())
