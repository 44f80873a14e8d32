"""What can be set of the restarter, by subject; `load` reads it from YAML.

Each field's docstring gives its unit, its meaning and why the default is what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..config import yaml_record
from ..config.sidecar import DEFAULT_PORT, LogSettings, WebSettings
from ..config.yaml_record import Count, Seconds
from ..errors import UsageError
from . import bounds

PORT, METRICS_PORT = 9837, 9838
MOST_PER_DAY = 48


@dataclass(frozen=True)
class AuthSettings:
    """Who may send alerts, read decisions and close the circuit, beside the users of `web.config_file`."""

    bearer_file: Path | None = None
    """A token a line; read anew for each request, so that a token is replaced without a restart."""


@dataclass(frozen=True)
class PolicySettings:
    """When a job is restarted. The defaults restart nothing."""

    enabled: bool = True
    """false refuses everything, and says so: a switch for the hour in which nobody should touch the jobs."""
    dry_run: bool = True
    """Decide, tell, ask the server for a dry run, and change nothing."""
    namespaces: tuple[str, ...] = ()
    """Only jobs of these are touched, or even looked at. None by default."""
    alert_labels: Mapping[str, str] = field(default_factory=dict)
    """What an alert must carry, as {cluster: a}: one Alertmanager may serve clusters with equal names in them."""
    cool_down: Seconds = 1800.0
    """After a restart of a job; doubled by each further one within a day. Longer than a job takes to warm up."""
    max_per_day: Count = 4
    """Restarts of one job within 24 h."""
    max_in_flight: Count = 1
    """Restarts at once, over all jobs: whatever goes wrong goes wrong with one."""
    max_per_hour: Count = 10
    """Restarts within an hour, over all jobs. Whoever asks for more opens the circuit."""
    benefit_window: Seconds = 3600.0
    """An alert that returns within this time of a restart says that the restart did not help."""
    useless_restarts: Count = 2
    """After so many in a row that did not help, the job is left alone until a person has looked."""
    circuit_failures: Count = 3
    """Restarts that failed or did not help, over all jobs within circuit_window, that open the circuit."""
    circuit_window: Seconds = 21600.0
    """Failures further apart have nothing to do with each other."""
    max_wait: Seconds = 900.0
    """An alert that could not be looked at for so long (restarts in flight, API server away) is no news any more."""

    def __post_init__(self) -> None:
        if self.max_per_day > MOST_PER_DAY:
            raise UsageError(f"policy.max_per_day is above {MOST_PER_DAY}: a job remembers no more than that")
        bounds.require_namespaces(self.namespaces, "policy.namespaces")


@dataclass(frozen=True)
class RestartSettings:
    """How long each part of a restart may take."""

    stop_timeout: Seconds = 900.0
    """From the order to stop until nothing runs; then the job is told to go on all the same, and that is a failure."""
    run_timeout: Seconds = 900.0
    """From the order to go on until all pods are ready; images are pulled and quotas waited for meanwhile."""
    poll: Seconds = 5.0
    """Between two looks at a job that stops or starts."""
    retry: Seconds = 5.0
    """After a call that failed; doubled by each further failure, up to a minute."""
    sweep: Seconds = 300.0
    """Between two searches for jobs that a restart has left half way, of whichever receiver."""


@dataclass(frozen=True)
class CheckpointSettings:
    """The checkpoint before a restart."""

    timeout: Seconds = 600.0
    """Until all ranks have saved."""
    on_timeout: str = "abort"
    """abort: the job goes on, and nothing is lost. restart: work since its last checkpoint is lost."""
    token_file: Path | None = None
    """The bearer token of the sidecars' control endpoint, read anew for each call. None: no job is asked to save."""
    port: Count = DEFAULT_PORT
    """Of the sidecars, in each pod of a job."""
    ca_file: Path | None = None
    """The authority of the sidecars' certificates; None: they are asked in clear."""
    server_name: str | None = None
    """The name in their certificates, which pods' addresses are not; None: the address."""
    call_timeout: Seconds = 5.0
    """Of one call; a rank answers at once."""
    hold: Seconds = 120.0
    """How long ranks that have saved stand still and wait to be stopped; after that they train on."""

    def __post_init__(self) -> None:
        if self.on_timeout not in ("abort", "restart"):
            raise UsageError(f"checkpoint.on_timeout is {self.on_timeout!r:.40}: abort or restart belongs here")


@dataclass(frozen=True)
class PrometheusSettings:
    """Where to ask, before acting, whether the alert is still true."""

    url: str | None = None
    """As http://prometheus:9090. None: not asked, and each decision says so."""
    bearer_file: Path | None = None
    """Sent as a bearer token; read anew for each query."""
    ca_file: Path | None = None
    """The authority of an https server; None: those of the system."""
    timeout: Seconds = 10.0
    """Of one query."""
    max_sample_age: Seconds = 120.0
    """Of the job's newest sample: two scrapes of a minute."""
    labels: tuple[str, ...] = ("namespace", "job", "job_name", "pod")
    """Those of the alert by which its series are found; external labels, which Alertmanager sees, find none."""

    def __post_init__(self) -> None:
        if self.url is not None:
            bounds.require_url(self.url, "prometheus.url")
        bounds.require_labels(self.labels, "prometheus.labels")


@dataclass(frozen=True)
class CircuitSettings:
    """Where it is written down that the circuit is open, so that a new start of the restarter does not close it."""

    config_map: str = "gpufrag-restarter"
    """The annotations of this ConfigMap; it must exist."""
    namespace: str | None = None
    """Of the ConfigMap; None: the one that the restarter runs in."""

    def __post_init__(self) -> None:
        bounds.require_object(self.config_map, "circuit.config_map")
        bounds.require_namespaces(() if self.namespace is None else (self.namespace,), "circuit.namespace")


@dataclass(frozen=True)
class ProcessSettings:
    """Of target process: jobs on this host, started with `gpufrag run --restartable`."""

    folder: Path | None = None
    """The jobs' GPUFRAG_DIR; None: as the environment and the defaults have it."""


@dataclass(frozen=True)
class SlurmSettings:
    """Of target slurm: jobs that `scontrol requeue` puts back into the queue."""

    users: tuple[str, ...] = ()
    """Whose jobs may be touched; none named: those of the user whom the restarter runs as."""
    timeout: Seconds = 20.0
    """Of one command of Slurm's."""
    signal_grace: Seconds = 120.0
    """From the signal that a job's comment names to its requeue, unless the job says earlier that it has saved."""
    start_after: Seconds | None = None
    """A job that was put back is told to start so soon; None: after Slurm's own two minutes. A node fails a job whose
    start is not later, by the clocks of both, than the end of its last run: longer than they may differ."""


@dataclass(frozen=True)
class AlertsWeb(WebSettings):
    """Where alerts come in, and decisions are shown."""

    listen_address: str = f"127.0.0.1:{PORT}"
    """As of every server; alerts come from another host, which takes `:9837` and a token or a password."""


@dataclass(frozen=True)
class MetricsWeb(WebSettings):
    """Where /metrics and the probes are: another port, so that a network policy can tell who may reach which."""

    listen_address: str = f"127.0.0.1:{METRICS_PORT}"
    """As of every server."""


@dataclass(frozen=True)
class RestarterConfig:
    """All that `gpufrag restarter` can be told."""

    web: AlertsWeb = AlertsWeb()
    metrics_web: MetricsWeb = MetricsWeb()
    auth: AuthSettings = AuthSettings()
    policy: PolicySettings = PolicySettings()
    restart: RestartSettings = RestartSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    prometheus: PrometheusSettings = PrometheusSettings()
    circuit: CircuitSettings = CircuitSettings()
    target: str = "kubernetes"
    """Where the jobs run: kubernetes, process (this host), or slurm."""
    state_file: Path | None = None
    """Of target process and slurm: where is written down what a ConfigMap and annotations hold in Kubernetes."""
    process: ProcessSettings = ProcessSettings()
    slurm: SlurmSettings = SlurmSettings()
    queue: Count = 1000
    """Alerts that wait; one more is answered 503, and Alertmanager sends it again."""
    log: LogSettings = LogSettings()  # noqa: RUF009 frozen

    def __post_init__(self) -> None:
        if self.target not in ("kubernetes", "process", "slurm"):
            raise UsageError(f"target is {self.target!r:.40}: kubernetes, process or slurm belongs here")
        bounds.require(self)
        address = self.web.listen_address
        if address == self.metrics_web.listen_address and not address.endswith(":0"):
            raise UsageError(f"web and metrics_web both have listen_address {address:.60}: give each a port of its own")


def idle_because(config: RestarterConfig) -> str | None:
    """Why this config restarts nothing, as that of an empty file; None: it restarts jobs."""
    policy = config.policy
    if not policy.enabled:
        return "policy.enabled is false"
    if policy.dry_run:
        return "policy.dry_run is true"
    return "policy.namespaces is empty" if config.target == "kubernetes" and not policy.namespaces else None


def load(path: Path) -> RestarterConfig:
    """Raises Unavailable, BadInput or UsageError, each of which names the file."""
    return yaml_record.load(RestarterConfig, path)
