"""What can be set, by subject. `load` reads it from YAML; a flag of the command wins over the file.

Each field's docstring gives its unit, its meaning and why the default is what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError
from ..units import format_bytes, format_duration
from ..wire.sample import MAX_BYTES
from . import yaml_record
from .yaml_record import Bytes, Count, Seconds

DEFAULT_PORT = 9836
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class WebSettings:
    """The HTTP server: where it listens and how much it bears. Sidecar and restarter share it."""

    listen_address: str = f"127.0.0.1:{DEFAULT_PORT}"
    """host:port, [v6]:port, or :port for every interface. Loopback, because figures about a job are not for all."""
    config_file: Path | None = None
    """TLS and basic auth, in the form that Prometheus exporters share; plain HTTP without it."""
    max_requests: Count = 16
    """Requests in work at once; one more is answered 503. A pair of Prometheus servers needs 2."""
    max_connections: Count = 64
    """Open connections at once; one more is answered 503 and closed. Idle ones count."""
    max_header_size: Bytes = 16 << 10
    """The head of a request; a browser behind a proxy sends up to 8 KiB."""
    request_timeout: Seconds = 10.0
    """From the first byte of a request to the last of its answer; Prometheus gives up after 10 s too."""
    keep_alive: Seconds = 65.0
    """An idle connection is kept this long: over a scrape interval of a minute, so that TLS is set up once."""
    drain_timeout: Seconds = 4.0
    """After SIGTERM, for requests in work; with what comes before and after it stays under 5 s."""


@dataclass(frozen=True)
class FolderSettings:
    """The folder in which agents leave their samples, and how much of it is read."""

    path: Path | None = None
    """None: $GPUFRAG_DIR, else /run/gpufrag, else a private folder under the temp dir, as the agents choose it."""
    max_processes: Count = 1000
    """Samples read at once, those with a listener first, then the newest; the rest is skipped and counted."""
    max_file_size: Bytes = 1 << 20
    """A larger file is skipped and counted; a sample of one device is some 3 KiB. No sample is above 4 MiB."""
    max_total_size: Bytes = 64 << 20
    """All samples together: what a folder full of rubbish can make the sidecar read."""
    last_words: Seconds = 600.0
    """How long a dead process's counters stay, and then its file: long enough for a few scrapes to see them."""
    deadline: Seconds = 5.0
    """A reading that takes longer (a hung network folder) is given up for this scrape, and reported so."""
    reports: Seconds = 86400.0
    """How long a report of an out-of-memory error stays: until somebody comes to look, after a night."""
    max_reports: Count = 200
    """Reports kept at once, the latest; an older one is removed. Each is some 10 KiB."""


@dataclass(frozen=True)
class NvmlSettings:
    """The driver's own figures. A sidecar often sees no GPU: then the agents' readings serve."""

    enabled: bool = True
    """false never loads the library, and reports no NVML collector."""
    deadline: Seconds = 2.0
    """A call into a hung driver is left behind after this, so that a scrape ends in time."""


@dataclass(frozen=True)
class MetricsSettings:
    """What /metrics holds."""

    detail: bool = True
    """What no alert or rule reads too, histograms of free blocks above all: most of a rank's series."""


@dataclass(frozen=True)
class ControlSettings:
    """What a sidecar lets others do to its ranks: have them save a checkpoint, and end."""

    token_file: Path | None = None
    """Bearer tokens, one a line, read anew for each request. None: no such paths exist. No password opens them."""
    optional: bool = False
    """Without the file the sidecar starts all the same, as with None: in a pod, where a Secret may bring it or not."""


@dataclass(frozen=True)
class LogSettings:
    """What is logged, to stderr, a line an event."""

    level: str = "info"
    """debug, info, warning or error; info tells starts, reloads and what begins to fail or works again."""

    def __post_init__(self) -> None:
        if self.level not in LOG_LEVELS:
            raise UsageError(f"log.level is {self.level!r:.40}: one of {', '.join(LOG_LEVELS)} belongs here")


class Range(NamedTuple):
    """What is sensible, both bounds included; `show` writes a value as the file would."""

    least: float
    most: float
    show: Callable[[Any], str]

    def require(self, value: float, place: str) -> None:
        """Raises UsageError for a value, at a place of the file, that is not within."""
        if not self.least <= value <= self.most:
            wanted = f"from {self.show(self.least)} to {self.show(self.most)} belongs here"
            raise UsageError(f"{place} is {self.show(value)}: {wanted}")


MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
RANGES: dict[type, dict[str, Range]] = {
    FolderSettings: {
        "max_processes": Range(1, 100_000, str),
        "max_file_size": Range(1 << 10, MAX_BYTES, format_bytes),
        "max_total_size": Range(1 << 10, 16 << 30, format_bytes),
        "last_words": Range(0.1, 30 * DAY, format_duration),
        "deadline": Range(0.01, 5 * MINUTE, format_duration),
        "reports": Range(1, 365 * DAY, format_duration),
        "max_reports": Range(1, 10_000, str),
    },
    WebSettings: {
        "max_requests": Range(1, 10_000, str),
        "max_connections": Range(1, 100_000, str),
        "max_header_size": Range(1 << 10, 1 << 20, format_bytes),
        "request_timeout": Range(0.1, HOUR, format_duration),
        "keep_alive": Range(0.1, DAY, format_duration),
        "drain_timeout": Range(0.1, 10 * MINUTE, format_duration),
    },
    NvmlSettings: {"deadline": Range(0.01, 5 * MINUTE, format_duration)},
}
"""Every number that can be set, by its subject. Beyond it lies no use, only a slip of the pen."""


def require_ranges(whole: Any) -> None:
    """Raises UsageError for the first number of a whole config, of whichever program, that is out of its range."""
    for subject in fields(whole):
        record = getattr(whole, subject.name)
        ranges = next((ranges for kind, ranges in RANGES.items() if isinstance(record, kind)), {})
        for key, allowed in ranges.items():
            allowed.require(getattr(record, key), f"{subject.name}.{key}")


@dataclass(frozen=True)
class ServeConfig:
    """All that `gpufrag serve` can be told."""

    folder: FolderSettings = FolderSettings()
    web: WebSettings = WebSettings()
    nvml: NvmlSettings = NvmlSettings()
    metrics: MetricsSettings = MetricsSettings()
    control: ControlSettings = ControlSettings()
    log: LogSettings = LogSettings()

    def __post_init__(self) -> None:
        require_ranges(self)
        if self.folder.max_file_size > self.folder.max_total_size:
            raise UsageError("folder.max_file_size is above folder.max_total_size: the largest file would not be read")
        self._require_an_answer_in_time()

    def _require_an_answer_in_time(self) -> None:
        deadlines = {"folder.deadline": self.folder.deadline}
        if self.nvml.enabled:
            deadlines["nvml.deadline"] = self.nvml.deadline
        if sum(deadlines.values()) >= self.web.request_timeout:
            told = " + ".join(f"{name} ({format_duration(seconds)})" for name, seconds in deadlines.items())
            timeout = format_duration(self.web.request_timeout)
            hangs = "where a source hangs, no scrape would be answered"
            raise UsageError(f"web.request_timeout ({timeout}) is not above {told}: {hangs}")


def load(path: Path) -> ServeConfig:
    """Raises Unavailable, BadInput or UsageError, each of which names the file."""
    return yaml_record.load(ServeConfig, path)
