"""Bodies of Alertmanager's webhook, valid and broken."""

from __future__ import annotations

import copy
import json
import random
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
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 10**40, "", "\x00", "\ud800", "x" * 5000, [], {}, [[]], {"a": {}}, "4", "firing",
    "2026-13-45T99:99:99Z", "9999-12-31T23:59:59+23:59", "0001-01-01T00:00:00-14:00",
)  # fmt: skip


def body(**changes: Any) -> bytes:
    return json.dumps({**CALL, **changes}).encode()


def broken(chance: random.Random) -> bytes:
    """Return a call with one to four random changes in its values or bytes."""
    call = copy.deepcopy(CALL)
    for _ in range(chance.randint(1, 4)):
        _spoil(call, chance)
    data = bytearray(json.dumps(call).encode())
    if chance.random() < 0.4:
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.1 else data)


def _spoil(value: Any, chance: random.Random) -> None:
    """Change or remove a random value."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return
    key = chance.choice(keys)
    inner = value[key]
    if isinstance(inner, (dict, list)) and inner and chance.random() < 0.7:
        _spoil(inner, chance)
    elif chance.random() < 0.2:
        del value[key]
    else:
        value[key] = chance.choice(ODD)
