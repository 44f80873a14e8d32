"""What is sensible of each setting of the restarter, by its subject. Beyond it lies no use, only a slip of the pen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from ..config.sidecar import DAY, HOUR, MINUTE, Range, require_ranges
from ..errors import UsageError
from ..units import format_duration

YEAR = 365 * DAY
BOUNDS: dict[str, dict[str, Range]] = {
    "policy": {
        "cool_down": Range(1, 30 * DAY, format_duration),
        "max_in_flight": Range(1, 1000, str),
        "max_per_hour": Range(1, 10_000, str),
        "benefit_window": Range(1, 30 * DAY, format_duration),
        "useless_restarts": Range(1, 1000, str),
        "circuit_failures": Range(1, 60, str),  # of which the circuit remembers no more
        "circuit_window": Range(1, 30 * DAY, format_duration),
        "max_wait": Range(1, DAY, format_duration),
    },
    "restart": {
        "stop_timeout": Range(1, 7 * DAY, format_duration),
        "run_timeout": Range(1, 7 * DAY, format_duration),
        "poll": Range(0.01, HOUR, format_duration),
        "retry": Range(0.01, HOUR, format_duration),
        "sweep": Range(0.1, DAY, format_duration),
    },
    "checkpoint": {
        "timeout": Range(0.1, DAY, format_duration),
        "port": Range(1, 65535, str),
        "call_timeout": Range(0.1, 10 * MINUTE, format_duration),
        "hold": Range(0.1, HOUR, format_duration),
    },
    "prometheus": {
        "timeout": Range(0.1, 10 * MINUTE, format_duration),
        "max_sample_age": Range(1, DAY, format_duration),
    },
    "slurm": {
        "timeout": Range(0.1, HOUR, format_duration),
        "signal_grace": Range(0.1, DAY, format_duration),
        "start_after": Range(0.1, DAY, format_duration),
    },
}
QUEUE = Range(1, 100_000, str)
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def require(whole: Any) -> None:
    """Raises UsageError for the first number of a whole config of the restarter that is out of its bounds."""
    require_ranges(whole)
    for subject, bounds in BOUNDS.items():
        for key, allowed in bounds.items():
            value = getattr(getattr(whole, subject), key)
            if value is not None:
                allowed.require(value, f"{subject}.{key}")
    QUEUE.require(whole.queue, "queue")


def require_namespaces(names: Iterable[str], place: str) -> None:
    """Raises UsageError for what is no name of a namespace: a pattern would match none, and nobody would be told."""
    for name in names:
        if not _NAMESPACE.fullmatch(name):
            raise UsageError(f"{place} has {name!r:.40}: name each namespace; there is no word or pattern for several")


def require_object(name: str, place: str) -> None:
    """Raises UsageError for what no object of Kubernetes can be called."""
    if not _OBJECT.fullmatch(name):
        raise UsageError(f"{place} is {name!r:.40}: the name of an object belongs here, as gpufrag-restarter")


def require_labels(names: Iterable[str], place: str) -> None:
    """Raises UsageError for what no label can be called: it would be written into a query as it is."""
    for name in names:
        if not _LABEL.fullmatch(name):
            raise UsageError(f"{place} has {name!r:.40}: names of labels belong here, as job_name")


def require_url(url: str, place: str) -> None:
    """Raises UsageError unless it is the address of a server; it is not told, for it may hold a password."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of the port, or of brackets
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url or "?" in url or "#" in url:
        raise UsageError(f"{place} is no address: write it as http://HOST:PORT")
    if "@" in parts.netloc:
        raise UsageError(f"{place} holds a user or a password, which would be shown: leave it out; tokens are in files")
