"""Bodies of Alertmanager's webhook."""

from __future__ import annotations

import json
from typing import Any

ALERT: dict[str, Any] = {
    "status": "firing",
    "labels": {
        "alertname": "GpuMemoryFragmented",
        "gpufrag_action": "restart",
        "namespace": "ml",
        "job_name": "train",
        "severity": "warning",
    },
    "annotations": {"description": "Job train: a ratio of 9.", "worst_pod": "train-1", "summary": "It is fragmented."},
    "startsAt": "2026-11-29T12:00:00.123456789Z",
    "endsAt": "0001-01-01T00:00:00Z",
    "generatorURL": "http://prometheus:9090/graph?g0.expr=x",
    "fingerprint": "8f2c71d9a0b1c2d3",
}
CALL: dict[str, Any] = {
    "receiver": "restarter",
    "status": "firing",
    "alerts": [ALERT, {**ALERT, "status": "resolved", "endsAt": "2026-11-29T12:05:00Z"}],
    "groupLabels": {"alertname": "GpuMemoryFragmented", "namespace": "ml"},
    "commonLabels": {"alertname": "GpuMemoryFragmented"},
    "commonAnnotations": {},
    "externalURL": "http://alertmanager:9093",
    "version": "4",
    "groupKey": '{}/{gpufrag_action="restart"}:{alertname="GpuMemoryFragmented", namespace="ml"}',
    "truncatedAlerts": 0,
}


def body(**changes: Any) -> bytes:
    return json.dumps({**CALL, **changes}).encode()
