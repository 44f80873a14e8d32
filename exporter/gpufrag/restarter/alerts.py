"""Alertmanager's webhook, version 4, as records. Unknown keys are ignored."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ..errors import BadInput, NewerVersion
from ..wire.codec import loads

VERSION = "4"
MAX_BODY = 1 << 20
MAX_ALERTS = 1000
"""Of one call. The shipped route groups by job, so a group is far smaller."""
MAX_TEXT, MAX_TEXTS = 1024, 16 << 10
"""Characters kept of one label or annotation, and of all together."""
FIRING, RESOLVED = "firing", "resolved"

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True)
class Alert:
    """One alert of a group. A firing group may contain resolved alerts."""

    status: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    starts_at_s: float | None = None
    """Unix time since which it has been firing."""

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "")

    @property
    def namespace(self) -> str | None:
        return self.labels.get("namespace") or None

    @property
    def pod(self) -> str | None:
        """A pod of the job; an alert about a whole job names its worst pod in an annotation."""
        return self.labels.get("pod") or self.annotations.get("worst_pod") or None


def parse(body: bytes) -> tuple[Alert, ...]:
    """Raises BadInput if `body` is not a webhook call, NewerVersion if its version is not 4."""
    try:
        raw = loads(body)
    except (ValueError, RecursionError):
        raise BadInput("the body is not JSON in UTF-8; use Alertmanager's webhook_configs") from None
    if not isinstance(raw, dict):
        raise BadInput("the body is not a JSON object; use Alertmanager's webhook_configs")
    if raw.get("version") != VERSION:
        raise NewerVersion(f"the webhook's version is not {VERSION}; use an Alertmanager that sends version {VERSION}")
    alerts = raw.get("alerts")
    if not isinstance(alerts, list) or len(alerts) > MAX_ALERTS:
        raise BadInput(f"alerts is not a list of at most {MAX_ALERTS}; group by alertname, namespace and job_name")
    return tuple(_alert(one, f"alerts[{place}]") for place, one in enumerate(alerts))


def _alert(raw: Any, where: str) -> Alert:
    if not isinstance(raw, dict):
        raise BadInput(f"{where} is not an object")
    if raw.get("status") not in (FIRING, RESOLVED):
        raise BadInput(f"{where}.status is neither {FIRING} nor {RESOLVED}")
    labels = _strings(raw.get("labels"), f"{where}.labels")
    return Alert(
        status=raw["status"],
        labels=labels,
        annotations=_strings(raw.get("annotations"), f"{where}.annotations"),
        fingerprint=_fingerprint(raw.get("fingerprint"), labels),
        starts_at_s=_time(raw.get("startsAt"), f"{where}.startsAt"),
    )


def _strings(raw: Any, where: str) -> dict[str, str]:
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
        raise BadInput(f"{where} is not an object of strings")
    return _bounded({_encodable(key): _encodable(value) for key, value in raw.items()})


def _bounded(texts: Mapping[str, str]) -> dict[str, str]:
    """Cut long texts and drop the last ones, because a thousand alerts may wait."""
    kept, left = {}, MAX_TEXTS
    for key, value in texts.items():
        left -= len(key) + len(value[:MAX_TEXT])
        if left < 0:
            break
        kept[key] = value[:MAX_TEXT]
    return kept


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON can contain and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def _fingerprint(raw: Any, labels: Mapping[str, str]) -> str:
    """Return Alertmanager's fingerprint, else one computed from the labels."""
    if isinstance(raw, str) and re.fullmatch(r"[0-9a-f]{1,64}", raw):
        return raw
    return hashlib.sha256(repr(sorted(labels.items())).encode()).hexdigest()[:16]


def _time(raw: Any, where: str) -> float | None:
    """Go writes up to nine digits of a second, which Python 3.10 cannot read; its zero time means none."""
    if raw is None:
        return None
    found = _TIME.fullmatch(raw) if isinstance(raw, str) and raw.isascii() else None
    try:
        if found is None:
            raise ValueError
        zone = "+00:00" if found[3] == "Z" else found[3]
        when = datetime.fromisoformat(found[1] + zone).astimezone(timezone.utc)
        return when.timestamp() + float(f"0.{found[2] or 0}") if when.year > 1970 else None
    except (ValueError, OverflowError):
        raise BadInput(f"{where} is not a time such as 2026-01-31T12:00:00Z") from None
