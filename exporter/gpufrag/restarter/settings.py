"""The settings of `gpufrag restarter`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from ..config import reader
from ..config.schema import DAY, HOUR, MINUTE, about, in_range, seconds
from ..config.sidecar import DEFAULT_PORT, ListenAddress, LogSettings, WebSettings
from ..errors import UsageError
from ..web.client import require_url

PORT, METRICS_PORT = 9837, 9838
FLAGS = ("log.level",)
MAX_RESTARTS_PER_DAY = 48  # a job remembers no more than that
MAX_CIRCUIT_FAILURES = 60  # the circuit remembers no more than that


_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def _require_namespaces(names: Iterable[str], place: str) -> None:
    for name in names:
        if not _NAMESPACE.fullmatch(name):
            raise UsageError(f"{place}: {name!r:.40} is not a namespace name; patterns do not work")


@dataclass(frozen=True)
class AuthSettings:
    """Who may send alerts, read decisions and close the circuit breaker, in addition to users in `web.config_file`."""

    bearer_file: Annotated[
        Path | None,
        about(
            "File with bearer tokens, one per line. The restarter reads it again for each request. Required unless "
            "`web.config_file` requires passwords or client certificates."
        ),
    ] = None


@dataclass(frozen=True)
class PolicySettings:
    """When a job is restarted. With the defaults, no job is restarted."""

    enabled: Annotated[bool, about("If false, the restarter refuses every restart.")] = True
    dry_run: Annotated[bool, about("Only report what the restarter would do.")] = True
    namespaces: Annotated[
        tuple[str, ...], about("Namespaces whose jobs may be restarted. List each name; patterns do not work.")
    ] = ()
    alert_labels: Annotated[
        Mapping[str, str], about("Labels that an alert must have, for example the cluster's name.")
    ] = field(default_factory=dict)
    cooldown: Annotated[
        float,
        seconds(
            1, 30 * DAY, "Minimum time between two restarts of a job. Each further restart within 24 hours doubles it."
        ),
    ] = 1800.0
    max_per_day: Annotated[int, in_range(1, MAX_RESTARTS_PER_DAY, "Maximum restarts of one job within 24 hours.")] = 4
    max_in_flight: Annotated[int, in_range(1, 1000, "Maximum restarts in progress, over all jobs.")] = 1
    max_per_hour: Annotated[
        int, in_range(1, 10_000, "Maximum restarts within one hour, over all jobs. One more opens the circuit breaker.")
    ] = 10
    benefit_window: Annotated[
        float, seconds(1, 30 * DAY, "A restart did not help if the alert fires again within this time.")
    ] = 3600.0
    max_ineffective_restarts: Annotated[
        int, in_range(1, 1000, "After this many restarts in a row that did not help, the job is not restarted again.")
    ] = 2
    circuit_failures: Annotated[
        int,
        in_range(
            1,
            MAX_CIRCUIT_FAILURES,
            "The circuit breaker opens if this many restarts within `circuit_window` failed or did not help.",
        ),
    ] = 3
    circuit_window: Annotated[float, seconds(1, 30 * DAY, "Time over which `circuit_failures` counts restarts.")] = (
        21600.0
    )
    max_wait: Annotated[
        float, seconds(1, DAY, "How long the restarter tries again after a temporary problem. Then it drops the alert.")
    ] = 900.0

    def __post_init__(self) -> None:
        _require_namespaces(self.namespaces, "policy.namespaces")


@dataclass(frozen=True)
class RestartSettings:
    """Time limits of a restart."""

    stop_timeout: Annotated[
        float, seconds(1, 7 * DAY, "Time for the job to stop. If it takes longer, the restart counts as failed.")
    ] = 900.0
    run_timeout: Annotated[
        float, seconds(1, 7 * DAY, "Time until the restarted job runs with all pods ready, including image pulls.")
    ] = 900.0


@dataclass(frozen=True)
class CheckpointSettings:
    """The checkpoint before a restart."""

    timeout: Annotated[float, seconds(0.1, DAY, "Time for all ranks to save.")] = 600.0
    on_timeout: Annotated[
        Literal["abort", "restart"],
        about(
            "If the checkpoint fails: abort lets the job run. restart restarts the job, which loses the work since its"
            " last checkpoint."
        ),
    ] = "abort"
    token_file: Annotated[
        Path | None,
        about(
            "Target kubernetes: file with a token of the sidecars' `control.token_file`. Without it, the restarter"
            " requests neither checkpoints nor defragmentations."
        ),
    ] = None
    port: Annotated[int, in_range(1, 65535, "Port of the sidecar in each pod.")] = DEFAULT_PORT
    ca_file: Annotated[
        Path | None, about("CA certificates for the sidecars. Without them, the restarter uses plain HTTP.")
    ] = None
    server_name: Annotated[str | None, about("Name in the sidecars' certificates. Default: the pod's address.")] = None
    call_timeout: Annotated[float, seconds(0.1, 10 * MINUTE, "Timeout of one request to a sidecar or a rank.")] = 5.0
    hold: Annotated[
        float,
        seconds(
            0.1, HOUR, "How long ranks wait after saving. If they are not stopped by then, they continue training."
        ),
    ] = 120.0


@dataclass(frozen=True)
class DefragmentSettings:
    """The defragmentation before a restart, for jobs with `gpufrag.dev/defragment: "true"`."""

    target_ratio: Annotated[
        float,
        in_range(
            1,
            1000,
            "Move memory until the fragmentation ratio of each rank is at most this. If it stays higher, restart.",
        ),
    ] = 2.0
    timeout: Annotated[
        float, seconds(0.1, 30 * MINUTE, "Time for all ranks to defragment, including the wait for the end of a step.")
    ] = 120.0
    watch: Annotated[
        float,
        seconds(
            0,
            HOUR,
            "Restart if the alert still fires this long after the defragmentation. Keep it below `policy.max_wait`, and"
            " above `timing.window` + `timing.keep_firing` of the [rules](configuration-mixin.md).",
        ),
    ] = 600.0


@dataclass(frozen=True)
class PrometheusSettings:
    """The Prometheus that confirms an alert before a restart."""

    url: Annotated[
        str | None,
        about(
            "Address, for example http://prometheus:9090. Without it, the restarter does not verify alerts.",
            secret=True,
        ),
    ] = None
    bearer_file: Annotated[
        Path | None, about("File with a bearer token. The restarter reads it again for each query.")
    ] = None
    ca_file: Annotated[Path | None, about("CA of an https server. Default: the system's CAs.")] = None
    timeout: Annotated[float, seconds(0.1, 10 * MINUTE, "Timeout of one query.")] = 10.0
    max_sample_age: Annotated[float, seconds(1, DAY, "Maximum age of the job's newest sample.")] = 120.0
    labels: Annotated[
        tuple[str, ...],
        about("Labels that select the series of an alert. Do not list external labels: series do not have them."),
    ] = ("namespace", "job", "job_name", "pod")

    def __post_init__(self) -> None:
        if self.url is not None:
            require_url(self.url, "prometheus.url")
        for name in self.labels:
            if not _LABEL.fullmatch(name):
                raise UsageError(f"prometheus.labels: {name!r:.40} is not a label name")


@dataclass(frozen=True)
class CircuitSettings:
    """Target kubernetes: where the state of the circuit breaker is stored."""

    config_map: Annotated[str, about("Name of a ConfigMap, which must exist. Its annotations hold the state.")] = (
        "gpufrag-restarter"
    )
    namespace: Annotated[str | None, about("Namespace of the ConfigMap. Default: the restarter's own.")] = None

    def __post_init__(self) -> None:
        if not _OBJECT.fullmatch(self.config_map):
            raise UsageError(f"circuit.config_map: {self.config_map!r:.40} is not an object name")
        _require_namespaces(() if self.namespace is None else (self.namespace,), "circuit.namespace")


@dataclass(frozen=True)
class ProcessSettings:
    """Target process: jobs on this host, started with `gpufrag run --restartable`."""

    folder: Annotated[Path | None, about("The jobs' GPUFRAG_DIR. Default: the agents' default folder.")] = None


@dataclass(frozen=True)
class SlurmSettings:
    """Target slurm: jobs restarted with `scontrol requeue`."""

    users: Annotated[
        tuple[str, ...], about("Users whose jobs may be restarted. Default: the user that runs the restarter.")
    ] = ()
    timeout: Annotated[float, seconds(0.1, HOUR, "Timeout of one Slurm command.")] = 20.0
    signal_grace: Annotated[
        float,
        seconds(
            0.1, DAY, "Time for the job to save after the signal. A job that reports that it saved is requeued at once."
        ),
    ] = 120.0
    start_after: (
        Annotated[
            float,
            seconds(
                0.1,
                DAY,
                "Time from the requeue to the earliest start. Default: Slurm's two minutes. Choose more than the clock"
                " difference between controller and nodes.",
            ),
        ]
        | None
    ) = None


@dataclass(frozen=True)
class AlertsWeb(WebSettings):
    """The server for alerts and decisions."""

    listen_address: ListenAddress = f"127.0.0.1:{PORT}"


@dataclass(frozen=True)
class MetricsWeb(WebSettings):
    """The server for /metrics and probes, on its own port. A network policy can then allow it separately."""

    listen_address: ListenAddress = f"127.0.0.1:{METRICS_PORT}"


@dataclass(frozen=True)
class RestarterConfig:
    """All settings of `gpufrag restarter`."""

    web: AlertsWeb = AlertsWeb()
    metrics_web: MetricsWeb = MetricsWeb()
    auth: AuthSettings = AuthSettings()
    policy: PolicySettings = PolicySettings()
    restart: RestartSettings = RestartSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    defragment: DefragmentSettings = DefragmentSettings()
    prometheus: PrometheusSettings = PrometheusSettings()
    circuit: CircuitSettings = CircuitSettings()
    target: Annotated[
        Literal["kubernetes", "process", "slurm"],
        about("Where the jobs run: in Kubernetes, as processes of this host, or in Slurm."),
    ] = "kubernetes"
    state_file: Annotated[
        Path | None, about("File that stores the restarter's state. Required for the targets process and slurm.")
    ] = None
    process: ProcessSettings = ProcessSettings()
    slurm: SlurmSettings = SlurmSettings()
    log: LogSettings = LogSettings()  # noqa: RUF009 frozen

    def __post_init__(self) -> None:
        address = self.web.listen_address
        if address == self.metrics_web.listen_address and not address.endswith(":0"):
            raise UsageError(f"web and metrics_web have the same listen_address {address:.60}; choose two ports")


def idle_because(config: RestarterConfig) -> str | None:
    """Return why this config restarts nothing, or None."""
    policy = config.policy
    if not policy.enabled:
        return "policy.enabled is false"
    if policy.dry_run:
        return "policy.dry_run is true"
    return "policy.namespaces is empty" if config.target == "kubernetes" and not policy.namespaces else None


def load(path: Path | None, flags: Mapping[str, Any] = reader.NO_FLAGS) -> RestarterConfig:
    """Return the config file's settings, if any, with flags on top. Raises Unavailable, BadInput or UsageError."""
    return reader.load(RestarterConfig, path, flags)
