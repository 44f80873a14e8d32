"""Decisions, published as an Event on the job, a JSON line on stdout, a metric, and a list for the page."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any, NamedTuple, TextIO

from ..logs import event
from .alerts import Alert
from .backend import BackendError, Job
from .clock import Clock, Deduplicator
from .metrics import ACTIONS, DEDUPLICATED, EVENTS_LOST, LAST_SUCCESS, REFUSED_ALERTS, Metrics
from .reasons import Refused

MAX_DECISIONS = 1000
REPEAT_S = 300.0
"""The same refusal or wait of the same job is published once in this time."""

REFUSED = "refused"
WOULD_RESTART = "would-restart"
STARTED = "started"
WAITING = "waiting"
RESTARTED = "restarted"
DEFRAGMENTED = "defragmented"
"""No restart was needed any more."""
NOT_DEFRAGMENTED = "not-defragmented"
"""A defragmentation failed or did not help; the restart follows."""
FAILED = "failed"
ENDED = "ended"
"""The restart is over, and neither succeeded nor failed."""
TAKEN_OVER = "taken-over"
"""A restart that another process began and did not complete."""
CIRCUIT_CLOSED = "circuit-closed"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decision:
    """What was decided, about which job, and why."""

    at_s: float
    """Unix time."""
    outcome: str
    reason: str
    """A reason's label or a result's label."""
    text: str
    alert: str = ""
    fingerprint: str = ""
    namespace: str = ""
    pod: str = ""
    job: str = ""

    @property
    def warning(self) -> bool:
        return self.outcome in (FAILED, STARTED, TAKEN_OVER, WAITING)

    def as_json(self) -> dict[str, Any]:
        facts = {key: value for key, value in asdict(self).items() if key != "at_s"}
        return {"time": datetime.fromtimestamp(self.at_s, timezone.utc).isoformat(timespec="seconds"), **facts}


class Result(NamedTuple):
    """How a restart ended."""

    outcome: str
    label: str
    text: str


Notify = Callable[[Job, Decision], None]
"""Shows a decision on the job itself. Raises BackendError."""


@dataclass
class DecisionLog:
    """Publishes decisions. Any thread may call `latest` and `publish`; the rest is for the worker's thread."""

    metrics: Metrics
    clock: Clock
    notify: Notify | None = None
    stream: TextIO = field(default_factory=lambda: sys.stdout)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[Decision] = deque(maxlen=MAX_DECISIONS)
        self._recent = Deduplicator(REPEAT_S)

    def latest(self) -> list[Decision]:
        """Return the newest first."""
        with self._lock:
            return list(reversed(self._kept))

    def publish(self, outcome: str, reason: str, text: str, alert: Alert | None = None, job: Job | None = None) -> None:
        """Never raises: a suspended job may depend on the next step."""
        name = job.name if job else ""
        decision = Decision(self.clock.now(), outcome, reason, text, job=name)
        if alert is not None:
            decision = Decision(
                decision.at_s, outcome, reason, text,
                alert.name, alert.fingerprint, alert.namespace or "", alert.pod or "", name,
            )  # fmt: skip
        with self._lock:
            self._kept.append(decision)
        try:
            print(json.dumps({"msg": "decision", **decision.as_json()}), file=self.stream, flush=True)
        except (OSError, ValueError) as error:
            event(log, logging.WARNING, "cannot write a decision to stdout", reason=error)
        if job is not None and self.notify is not None:
            try:
                self.notify(job, decision)
            except BackendError as error:
                self.metrics.count(EVENTS_LOST)
                event(log, logging.WARNING, "cannot create an Event", job=job.name, reason=error)

    def refused(self, alert: Alert, refusal: Refused, job: Job | None = None) -> None:
        """Publish a refusal; a repetition only counts as a duplicate."""
        label = refusal.reason.label
        if self._repeated(job.uid if job else (alert.namespace, alert.pod), label):
            return
        self.metrics.count(REFUSED_ALERTS, label)
        self.publish(REFUSED, label, f"Not restarted: {refusal}.", alert, job)

    def ended(self, result: Result, alert: Alert | None, job: Job) -> None:
        if result.outcome == WOULD_RESTART and self._repeated(job.uid, result.label):
            return
        self.metrics.count(ACTIONS, job.kind, result.label)
        if result.outcome == RESTARTED:
            self.metrics.set(LAST_SUCCESS, self.clock.now())
        self.publish(result.outcome, result.label, result.text, alert, job)

    def waiting(self, job: Job, label: str, text: str) -> None:
        """Publish what a restart in progress waits for; a repetition is dropped."""
        if not self._recent.seen((job.uid, label, text), self.clock.steady()):
            self.publish(WAITING, label, text, job=job)

    def _repeated(self, what: object, label: str) -> bool:
        repeated = self._recent.seen((what, label), self.clock.steady())
        if repeated:
            self.metrics.count(DEDUPLICATED)
        return repeated
