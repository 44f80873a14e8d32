"""The settings of `gpufrag serve`. The restarter shares those of the web server and the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ..errors import UsageError
from ..units import format_duration
from ..wire.sample import MAX_BYTES
from . import reader
from .schema import DAY, HOUR, MINUTE, about, between, in_range, seconds, size

DEFAULT_PORT = 9836

ListenAddress = Annotated[
    str,
    about(
        "Address to listen on: host:port, [v6]:port, or :port for every interface. The default is reachable from this"
        " host only.",
        "--web.listen-address",
    ),
]


@dataclass(frozen=True)
class WebSettings:
    """The HTTP server and its limits."""

    listen_address: ListenAddress = f"127.0.0.1:{DEFAULT_PORT}"
    config_file: Annotated[
        Path | None,
        about(
            "Web config file: TLS and passwords, in the format of Prometheus exporters. Without it: plain HTTP.",
            "--web.config.file",
        ),
    ] = None
    max_requests: Annotated[
        int,
        in_range(1, 10_000, "Maximum requests handled at once; others get 503. One client address can use up to 3/4."),
    ] = 16
    max_connections: Annotated[
        int,
        in_range(
            1,
            100_000,
            "Maximum open connections. A new connection beyond that closes an idle one. If none is idle, it gets 503.",
        ),
    ] = 64
    max_header_size: Annotated[
        int,
        size(1 << 10, 1 << 20, "Maximum size of request line and headers. A browser behind a proxy sends up to 8 KiB."),
    ] = 16 << 10
    request_timeout: Annotated[
        float, seconds(0.1, HOUR, "Time from the first byte of a request to the last byte of its response.")
    ] = 10.0
    keep_alive: Annotated[
        float, seconds(0.1, DAY, "How long an idle connection stays open. Choose more than the scrape interval.")
    ] = 65.0
    drain_timeout: Annotated[
        float, seconds(0.1, 10 * MINUTE, "How long running requests may take to finish after SIGTERM.")
    ] = 4.0
    allowed_hosts: Annotated[
        tuple[str, ...],
        about(
            "Protection against DNS rebinding: the names that requests may have in their Host header. Others get 421."
            " Empty: any name. Probes are exempt."
        ),
    ] = ()


@dataclass(frozen=True)
class FolderSettings:
    """The folder where agents write samples and reports, and the limits on reading it."""

    path: Annotated[
        Path | None,
        about(
            "Folder where the agents write their samples. Default: $GPUFRAG_DIR, else /run/gpufrag if it is writable,"
            " else a private folder under the temporary directory.",
            "--folder",
        ),
    ] = None
    max_processes: Annotated[
        int,
        in_range(
            1,
            100_000,
            "Maximum number of samples to read: running processes first, then the newest files.",
        ),
    ] = 1000
    max_file_size: Annotated[
        int,
        size(
            1 << 10,
            MAX_BYTES,
            "Maximum size of a file. The sidecar skips larger ones. A sample has about 3 KiB per device.",
        ),
    ] = 1 << 20
    max_total_size: Annotated[
        int, size(1 << 10, 16 << 30, "Maximum size of all samples read per scrape. The sidecar skips the rest.")
    ] = 64 << 20
    dead_process_retention: Annotated[
        float, seconds(0.1, 30 * DAY, "How long an exited process keeps its counters and its file.")
    ] = 600.0
    deadline: Annotated[
        float, seconds(0.01, 5 * MINUTE, "How long a scrape waits for the folder, for example if its mount hangs.")
    ] = 5.0
    report_retention: Annotated[float, seconds(1, 365 * DAY, "How long OOM reports are kept.")] = DAY
    max_reports: Annotated[
        int, in_range(1, 10_000, "Maximum OOM reports to keep, about 10 KiB each. Older ones are deleted.")
    ] = 200


@dataclass(frozen=True)
class NvmlSettings:
    """The GPU driver's own figures (NVML). Without them, the sidecar uses the agents' readings."""

    enabled: Annotated[bool, about("Also read memory figures from the GPU driver (NVML).", "--nvml")] = True
    deadline: Annotated[float, seconds(0.01, 5 * MINUTE, "How long a scrape waits for the driver.")] = 2.0


@dataclass(frozen=True)
class AnalysisSettings:
    """The analysis of recorded steps, in low-priority processes."""

    enabled: Annotated[
        bool,
        about(
            "Compute how much memory recorded steps need. If off, the metrics of recorded steps are absent.",
            "--analysis",
        ),
    ] = True
    cpu_share: Annotated[float, between(0.0001, 1.0, "Maximum share of one core, for each rank.")] = 0.02
    timeout: Annotated[
        float,
        seconds(
            1,
            HOUR,
            "Maximum time to analyse a recording. One that takes longer counts as timed_out.",
        ),
    ] = 60.0


@dataclass(frozen=True)
class MetricsSettings:
    """What /metrics exports."""

    detail: Annotated[
        bool, about("Also export metrics that no bundled alert uses. They are most of a rank's series.", "--detail")
    ] = True


@dataclass(frozen=True)
class ControlSettings:
    """The control endpoint: requests for checkpoints, exits and defragmentations, and the page's buttons."""

    token_file: Annotated[
        Path | None,
        about(
            "File with bearer tokens for checkpoints, defragmentations and the page's buttons, one per line. The"
            " sidecar reads the file again for each request. Without it, these requests are not possible.",
            "--control.token-file",
        ),
    ] = None
    optional: Annotated[
        bool, about("If the token file does not exist, start without the control endpoint.", "--control.optional")
    ] = False


@dataclass(frozen=True)
class LogSettings:
    """The log, on stderr, one line per event."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        about("Lowest level to log: debug, info, warning or error.", "--log.level"),
    ] = "info"


@dataclass(frozen=True)
class ServeConfig:
    """All settings of `gpufrag serve`."""

    folder: FolderSettings = FolderSettings()
    web: WebSettings = WebSettings()
    nvml: NvmlSettings = NvmlSettings()
    analysis: AnalysisSettings = AnalysisSettings()
    metrics: MetricsSettings = MetricsSettings()
    control: ControlSettings = ControlSettings()
    log: LogSettings = LogSettings()

    def __post_init__(self) -> None:
        if self.folder.max_file_size > self.folder.max_total_size:
            raise UsageError("folder.max_file_size is larger than folder.max_total_size")
        deadlines = {"folder.deadline": self.folder.deadline}
        if self.nvml.enabled:
            deadlines["nvml.deadline"] = self.nvml.deadline
        if sum(deadlines.values()) >= self.web.request_timeout:
            total = " + ".join(f"{name} ({format_duration(value)})" for name, value in deadlines.items())
            timeout = format_duration(self.web.request_timeout)
            raise UsageError(f"web.request_timeout ({timeout}) must be longer than {total}, or scrapes may time out")


def load(path: Path | None, flags: Mapping[str, Any] = reader.NO_FLAGS) -> ServeConfig:
    """Return the config file's settings, if any, with flags on top. Raises Unavailable, BadInput or UsageError."""
    return reader.load(ServeConfig, path, flags)
