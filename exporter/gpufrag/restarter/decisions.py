"""Every decision, told four ways: an Event on the job, a line of JSON, a metric, and the list that can be asked for."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any, TextIO

from ..logs import event
from .alerts import Alert
from .errors import ClusterError
from .kubernetes.cluster import Cluster, Event, Pod, Ref
from .metrics import EVENTS_LOST, Metrics

KEPT = 1000
REFUSED = "refused"
WOULD = "would-restart"
STARTED = "started"
RESTARTED = "restarted"
FAILED = "failed"
OVER = "over"
"""The job was gone before its restart was."""
RESUMED = "resumed"
"""What another left half way."""
CLOSED = "closed"
"""The circuit, by a person."""
_EVENT_REASONS: Mapping[str, str] = {
    REFUSED: "RestartRefused",
    STARTED: "RestartStarted",
    WOULD: "WouldRestart",
    RESTARTED: "Restarted",
    FAILED: "RestartFailed",
    OVER: "RestartOver",
    RESUMED: "RestartTakenUp",
}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decision:
    """What was decided, about what, and why."""

    at_s: float
    """Unix time."""
    outcome: str
    reason: str
    """A label: of the reasons of refusal, or a result."""
    text: str
    alert: str = ""
    fingerprint: str = ""
    namespace: str = ""
    pod: str = ""
    job: str = ""
    """Kind, namespace and name of the owner, where it was found."""

    def as_json(self) -> dict[str, Any]:
        """With the time as people read it."""
        facts = {key: value for key, value in asdict(self).items() if key != "at_s"}
        return {"time": datetime.fromtimestamp(self.at_s, timezone.utc).isoformat(timespec="seconds"), **facts}


def about(at_s: float, outcome: str, reason: str, text: str, alert: Alert, ref: Ref | None = None) -> Decision:
    """A decision with all that is known of its alert and job."""
    namespace, pod = alert.namespace or "", alert.pod or ""
    return Decision(at_s, outcome, reason, text, alert.name, alert.fingerprint, namespace, pod, str(ref or ""))


class Recorder:
    """Tells decisions. Any thread may read `latest`; one at a time tells."""

    def __init__(self, cluster: Cluster, metrics: Metrics, stream: TextIO | None = None) -> None:
        self._cluster, self._metrics = cluster, metrics
        self._stream = stream or sys.stdout
        self._lock = threading.Lock()
        self._kept: deque[Decision] = deque(maxlen=KEPT)

    def tell(self, decision: Decision, ref: Ref | None = None, pod: Pod | None = None) -> None:
        """`ref`: on what the Event is to be seen; None writes none. Never raises: a job may hang on what comes next."""
        with self._lock:
            self._kept.append(decision)
        self._write(decision)
        if ref is not None:
            self._create_event(decision, ref, pod)

    def latest(self) -> list[Decision]:
        """The newest first."""
        with self._lock:
            return list(reversed(self._kept))

    def _write(self, decision: Decision) -> None:
        try:
            print(json.dumps({"msg": "decision", **decision.as_json()}), file=self._stream, flush=True)
        except (OSError, ValueError) as error:
            event(log, logging.WARNING, "a decision could not be written to stdout", reason=error)

    def _create_event(self, decision: Decision, ref: Ref, pod: Pod | None) -> None:
        note = f"{decision.text} [{decision.reason}; alert {decision.alert or 'none'} {decision.fingerprint}]"
        warning = decision.outcome in (FAILED, STARTED, RESUMED)
        related = pod.ref if pod else None
        try:
            self._cluster.create_event(
                Event(ref, _EVENT_REASONS[decision.outcome], note, decision.at_s, warning, related=related)
            )
        except ClusterError as error:
            self._metrics.count(EVENTS_LOST)
            event(log, logging.WARNING, "an Event was not taken", job=ref, reason=error)
