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
            "File with TLS and basic auth settings, in the format Prometheus exporters share. Without it: plain HTTP.",
            "--web.config.file",
        ),
    ] = None
    max_requests: Annotated[
        int, in_range(1, 10_000, "Requests handled at once, at most 3/4 of them from one address; others get 503.")
    ] = 16
    max_connections: Annotated[
        int,
        in_range(
            1,
            100_000,
            "Maximum open connections. Above it, a new one replaces an idle one; if none is idle, it gets 503.",
        ),
    ] = 64
    max_header_size: Annotated[
        int, size(1 << 10, 1 << 20, "Request line and headers. A browser behind a proxy sends up to 8 KiB.")
    ] = 16 << 10
    request_timeout: Annotated[
        float, seconds(0.1, HOUR, "From the first byte of a request to the last byte of its response.")
    ] = 10.0
    keep_alive: Annotated[
        float, seconds(0.1, DAY, "How long an idle connection stays open. Keep it above the scrape interval.")
    ] = 65.0
    drain_timeout: Annotated[
        float, seconds(0.1, 10 * MINUTE, "How long running requests may take to finish after SIGTERM.")
    ] = 4.0
    allowed_hosts: Annotated[
        tuple[str, ...],
        about(
            "Host names and addresses that requests may use in their Host header; other requests get 421. Empty: any."
            " Set it to protect against DNS rebinding. Probes are exempt."
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
            "Maximum samples to read: running processes first, then the newest. Others are counted, not read.",
        ),
    ] = 1000
    max_file_size: Annotated[
        int, size(1 << 10, MAX_BYTES, "Larger files are skipped and counted. A sample is about 3 KiB per device.")
    ] = 1 << 20
    max_total_size: Annotated[int, size(1 << 10, 16 << 30, "Total size of the samples read per scrape.")] = 64 << 20
    dead_process_retention: Annotated[
        float, seconds(0.1, 30 * DAY, "How long the counters and the file of an exited process are kept.")
    ] = 600.0
    deadline: Annotated[
        float, seconds(0.01, 5 * MINUTE, "How long a scrape waits for the folder, which can be on a hung mount.")
    ] = 5.0
    report_retention: Annotated[float, seconds(1, 365 * DAY, "How long OOM reports are kept.")] = DAY
    max_reports: Annotated[int, in_range(1, 10_000, "OOM reports kept, about 10 KiB each. Older ones are deleted.")] = (
        200
    )


@dataclass(frozen=True)
class NvmlSettings:
    """The GPU driver's own figures. Without NVML, the readings of the agents are used."""

    enabled: Annotated[bool, about("Also read memory figures from the GPU driver (NVML).", "--nvml")] = True
    deadline: Annotated[float, seconds(0.01, 5 * MINUTE, "How long a scrape waits for the driver.")] = 2.0


@dataclass(frozen=True)
class AnalysisSettings:
    """Measures recordings and replays them on a simulated allocator, in low-priority processes."""

    enabled: Annotated[
        bool,
        about(
            "Find the memory that recorded steps need. If off, the sidecar only measures the recordings.", "--analysis"
        ),
    ] = True
    cpu_share: Annotated[
        float, between(0.0001, 1.0, "Share of one core for measuring and replaying, for each rank.")
    ] = 0.02
    timeout: Annotated[
        float, seconds(1, HOUR, "Stop work on a recording that takes longer; it counts as timed_out.")
    ] = 60.0


@dataclass(frozen=True)
class MetricsSettings:
    """What /metrics exports."""

    detail: Annotated[
        bool, about("Also export metrics that no bundled alert uses. They are most of a rank's series.", "--detail")
    ] = True


@dataclass(frozen=True)
class ControlSettings:
    """Requests that act on the ranks: checkpoint, exit, defragment, and the page's buttons."""

    token_file: Annotated[
        Path | None,
        about(
            "File with the bearer tokens required for checkpoints, defragmentations and the page's buttons, one per "
            "line. Read again for each request. Without it there is no control endpoint.",
            "--control.token-file",
        ),
    ] = None
    optional: Annotated[
        bool, about("Start without a control endpoint if the token file does not exist.", "--control.optional")
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
