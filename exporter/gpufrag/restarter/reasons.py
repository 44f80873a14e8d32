"""Why a job is not restarted: one row per reason, used for the metric label, the Event, the log line and the page."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import GpufragError


class Reason(NamedTuple):
    """One reason. `label` is a value of the label `reason` of gpufrag_restarter_refused_total."""

    label: str
    text: str
    remedy: str


class Refused(GpufragError):
    """A restart that does not happen. `detail` completes the reason's text: names, figures, an error message."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.text}{f' ({detail})' if detail else ''}; {reason.remedy}")
        self.reason, self.detail = reason, detail


NO_RESTART_LABEL = Reason(
    "no-restart-label",
    "the alert does not ask for a restart",
    'route only alerts with gpufrag_action="restart" to the restarter',
)
RESOLVED = Reason("resolved", "the alert is resolved", "nothing to do")
WRONG_ALERT_LABELS = Reason(
    "wrong-alert-labels",
    "the alert lacks a label that policy.alert_labels requires",
    "check which cluster the alert comes from",
)
NO_POD = Reason(
    "no-pod",
    "the alert does not name a pod and its namespace",
    "keep these labels, or the annotation worst_pod, in Alertmanager",
)
NAMESPACE_NOT_ALLOWED = Reason(
    "namespace-not-allowed", "policy.namespaces does not list the namespace", "add it to allow restarts there"
)
DISABLED = Reason("disabled", "restarts are disabled", "set policy.enabled: true")
JOB_FINISHED = Reason("job-finished", "the job has finished", "nothing to do")
JOB_DELETING = Reason("job-deleting", "the job is being deleted", "nothing to do")
NOT_OPTED_IN = Reason("not-opted-in", "the job has not opted in", 'set gpufrag.dev/restart: "true" on the job')
PAUSED = Reason("paused", "restarts of this job are paused", "remove gpufrag.dev/pause from the job")
RESTART_IN_PROGRESS = Reason("restart-in-progress", "the job is already being restarted", "nothing to do")
INEFFECTIVE = Reason(
    "ineffective",
    "restarts do not help this job",
    "fix the cause (try expandable_segments:True), then remove gpufrag.dev/restart-stopped from the job",
)
DEFRAGMENTED = Reason(
    "defragmented",
    "the job was defragmented a moment ago",
    "nothing to do: a later alert restarts it if that did not help",
)
CLOCK_SKEW = Reason(
    "clock-skew",
    "the last restart of the job is in the future",
    "set the clock, or remove gpufrag.dev/restart-at and gpufrag.dev/restart-history from the job",
)
COOLDOWN = Reason("cooldown", "the last restart was too recent", "nothing to do: the cooldown ends on its own")
DAILY_BUDGET = Reason(
    "daily-budget", "the job has used its restarts of the last 24 hours", "fix the cause, or raise policy.max_per_day"
)
CIRCUIT_OPEN = Reason("circuit-open", "the circuit breaker is open", "fix the cause, then POST /v1/circuit/close")
HOURLY_LIMIT = Reason(
    "hourly-limit",
    "too many restarts in the last hour; the circuit breaker opens",
    "find what these jobs have in common, then POST /v1/circuit/close",
)
CONCURRENCY_LIMIT = Reason(
    "concurrency-limit", "the maximum number of restarts is in progress", "nothing to do: the restarter tries again"
)
ALERT_EXPIRED = Reason(
    "alert-expired", "the alert waited too long in the queue", "nothing to do: Alertmanager sends it again"
)
CIRCUIT_UNAVAILABLE = Reason(
    "circuit-unavailable",
    "the state of the circuit breaker cannot be read or written",
    "grant get and patch on the ConfigMap named by circuit.config_map, or make state_file writable",
)
NOT_FIRING = Reason("not-firing", "Prometheus reports that the alert does not fire", "nothing to do")
STALE_SAMPLE = Reason(
    "stale-sample", "Prometheus has no fresh sample of the job", "check that Prometheus scrapes the job's sidecar"
)
PROMETHEUS_UNAVAILABLE = Reason(
    "prometheus-unavailable", "Prometheus did not confirm the alert", "check prometheus.url and its credentials"
)
CHECKPOINT_FAILED = Reason(
    "checkpoint-failed",
    "the job did not save a checkpoint and keeps running",
    "read the ranks' logs; set checkpoint.on_timeout: restart to restart without a checkpoint",
)
CHECKPOINT_EXPIRED = Reason(
    "checkpoint-expired",
    "the job was not stopped before its checkpoint expired; it keeps running",
    "check why the requests failed",
)
FORBIDDEN = Reason(
    "forbidden",
    "the restarter lacks a permission",
    "grant it (gpufrag doctor lists what is missing); the restarter tries again for policy.max_wait",
)
INVALID_REQUEST = Reason(
    "invalid-request", "the restarter's request was rejected", "fix what the decision's message names"
)
BACKEND_UNAVAILABLE = Reason(
    "backend-unavailable",
    "the API server, Slurm or the supervisor did not answer",
    "nothing to do: the restarter tries again",
)
CONFLICT = Reason("conflict", "another client kept changing the job", "nothing to do")
INTERNAL_ERROR = Reason("internal-error", "gpufrag failed", "report the error in the log")

POD_GONE = Reason("pod-gone", "the pod no longer exists", "nothing to do: the alert is outdated")
POD_REPLACED = Reason("pod-replaced", "another pod or job now has this name", "nothing to do: the alert is outdated")
JOB_GONE = Reason("job-gone", "the job no longer exists", "nothing to do")
BARE_POD = Reason("bare-pod", "no controller would recreate the pod", "run it as a Job")
UNKNOWN_CONTROLLER = Reason(
    "unknown-controller", "a controller that gpufrag does not support manages the job", "restart the job manually"
)
TOO_MANY_OWNERS = Reason("too-many-owners", "the pod has too many levels of owners", "restart the job manually")
KUEUE = Reason("kueue", "Kueue decides when the job runs", "restart the job manually")
SUSPENDED = Reason("suspended", "the job is already suspended", "resume it")
ROLLOUT_PAUSED = Reason("rollout-paused", "the Deployment is paused", "run kubectl rollout resume")
ON_DELETE = Reason(
    "on-delete",
    "the StatefulSet replaces only pods that are deleted manually",
    "set updateStrategy.type: RollingUpdate",
)
NO_RETRY = Reason(
    "no-retry", "the workflow would fail: Argo would not retry the step", "set retryStrategy.retryPolicy: Always"
)
NO_RETRIES_LEFT = Reason("no-retries-left", "the job would fail: it has no retries left", "raise its retry limit")
SHARED_CLUSTER = Reason(
    "shared-cluster", "the RayJob shares its cluster with other jobs", "give it a cluster of its own"
)
CLUSTER_KEPT = Reason(
    "cluster-kept", "the RayJob keeps its cluster, so it cannot be suspended", "set shutdownAfterJobFinishes: true"
)
INTERACTIVE_MODE = Reason(
    "interactive-mode", "nothing would submit the RayJob again", "use another submissionMode, or restart it manually"
)
NO_SUPERVISOR = Reason(
    "no-supervisor", "no job of this name runs on this host", "start it with gpufrag run --restartable --name NAME"
)
AMBIGUOUS_NAME = Reason("ambiguous-name", "several jobs have this name", "give each job its own name")
NO_TORCHRUN_WORKERS = Reason("no-torchrun-workers", "no torchrun worker is running", "start the job without --in-place")
NO_ELASTIC_RESTARTS_LEFT = Reason(
    "no-elastic-restarts-left", "torchrun has no restarts left and would end the job", "raise its --max-restarts"
)
NO_JOB_ID = Reason(
    "no-job-id", "the alert's job_name does not end with a Slurm job ID", "run the sidecar with --write-target"
)
OTHER_USER = Reason("other-user", "the job belongs to another user", "add the user to slurm.users")
NO_REQUEUE = Reason("no-requeue", "the job cannot be requeued", "submit it with --requeue")
NOT_RUNNING = Reason("not-running", "the job is not running", "nothing to do")

REASONS: tuple[Reason, ...] = tuple(value for value in globals().values() if isinstance(value, Reason))

RETRIED = frozenset({CONCURRENCY_LIMIT, CIRCUIT_UNAVAILABLE, BACKEND_UNAVAILABLE, CONFLICT, FORBIDDEN})
"""Tried again for policy.max_wait: Alertmanager repeats an alert only after hours."""
REPORTED_AT_ONCE = frozenset({FORBIDDEN})
"""Of RETRIED: reported before the first retry, because usually a person has to act."""
