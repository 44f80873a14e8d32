"""Why a job is not restarted: one row a reason, from which metric label, event, log line and page are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .errors import ClusterError, Conflict, Denied, Invalid, NotFound, Refused


class Reason(NamedTuple):
    """A row of REASONS."""

    label: str
    """Of the metric gpufrag_restarter_refused_total."""
    text: str
    """What is the case, for people."""
    remedy: str
    """What they can do about it."""


@dataclass(frozen=True)
class Skip:
    """Nothing is done. `detail` is what the reason's text leaves open; `said` stands in for the whole text."""

    reason: Reason
    detail: str = ""
    said: str = ""

    @property
    def text(self) -> str:
        if self.said:
            return self.said
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.reason.text}{detail}; {self.reason.remedy}"


NOT_ASKED = Reason(
    "not-asked",
    "the alert does not ask for a restart",
    'route to the restarter only what has gpufrag_action="restart"',
)
RESOLVED = Reason("resolved", "the alert has ended", "nothing to do")
FOREIGN = Reason(
    "foreign",
    "the alert lacks a label of this restarter's own",
    "see policy.alert_labels: it may be about another cluster",
)
NO_POD = Reason(
    "no-pod", "the alert names no namespace and pod", "keep the labels namespace and pod, or the annotation worst_pod"
)
NAMESPACE = Reason(
    "namespace", "the namespace is not among those that may be touched", "add it to policy.namespaces if it should be"
)
DISABLED = Reason("disabled", "restarts are switched off", "set policy.enabled to have them again")
FINISHED = Reason("finished", "the job has ended", "nothing to do")
DELETING = Reason("deleting", "the job is being deleted", "nothing to do")
NOT_OPTED_IN = Reason(
    "not-opted-in",
    "the job has not opted in",
    'set its annotation gpufrag.dev/restart: "true" to let it be restarted',
)
PAUSED = Reason("pause", "the job has the annotation gpufrag.dev/pause", "remove it to let the job be restarted")
UNDER_WAY = Reason("under-way", "a restart of this job is under way", "wait for its end")
STOPPED = Reason(
    "stopped",
    "restarts do not help this job",
    "mend its cause (try expandable_segments), then remove the annotation gpufrag.dev/restart-stopped",
)
CLOCK = Reason(
    "clock",
    "the job remembers a restart in the future: a clock is or was wrong",
    "set the clock right, or remove the annotations gpufrag.dev/restart-at and -history",
)
COOL_DOWN = Reason("cool-down", "the last restart was not long ago", "nothing to do: it ends by itself")
BUDGET = Reason(
    "budget",
    "the job's restarts of the last 24 h are spent",
    "see why the memory breaks up so often; policy.max_per_day sets how many there may be",
)
CIRCUIT = Reason("circuit-open", "the circuit is open", "mend the cause, then close it: POST /v1/circuit/close")
HOURLY = Reason(
    "hourly",
    "all restarts of this hour are spent, which opens the circuit",
    "see what so many jobs share, then close it: POST /v1/circuit/close",
)
IN_FLIGHT = Reason("in-flight", "as many restarts as may be are under way", "nothing to do: it is looked at again")
WAITED = Reason("waited", "the alert had to wait too long to be still true", "Alertmanager sends it again if it is")
NO_MEMORY = Reason(
    "no-memory",
    "the state of the circuit cannot be read or written",
    "let the restarter get and patch the ConfigMap that circuit.config_map names, or write state_file",
)
NOT_FIRING = Reason("not-firing", "Prometheus says that the alert does not fire now", "nothing to do")
STALE = Reason(
    "stale", "the job's newest sample is too old to act on", "see whether Prometheus still scrapes the job's sidecar"
)
UNCHECKED = Reason(
    "unchecked", "Prometheus could not be asked whether the alert is still true", "see prometheus.url and its token"
)
CHECKPOINT = Reason(
    "checkpoint",
    "no checkpoint could be had, and the job goes on without a restart",
    "see the ranks' logs; checkpoint.on_timeout: restart would restart it all the same",
)
LATE = Reason(
    "late",
    "the job could not be told to stop while its checkpoint was fresh, and trains on",
    "see why the cluster was away; the alert's next round saves anew, after the cool-down",
)
DENIED = Reason(
    "denied",
    "the cluster does not permit it",
    "give the restarter's Role what `gpufrag doctor` names; it is looked at again for policy.max_wait",
)
INVALID = Reason(
    "invalid",
    "the cluster, or the job's supervisor, will not take the request",
    "mend what it says; where that is nothing of the job's, tell us",
)
AWAY = Reason(
    "api-away",
    "the cluster (an API server, Slurm, the job's supervisor) did not answer in time",
    "Alertmanager sends the alert again",
)
CONFLICT = Reason("conflict", "somebody else kept changing the job at the same moment", "nothing to do")
FAULT = Reason("fault", "a fault in gpufrag itself", "report what the log says")

PASSING = frozenset({IN_FLIGHT, NO_MEMORY, AWAY, CONFLICT, DENIED})
"""Worth another look soon: Alertmanager would send the alert again only after hours."""
TOLD_AT_ONCE = frozenset({DENIED})
"""Of these, what a token that is being renewed brings too, but a person far more often, who should hear of it."""

_OF_TARGETS = (
    Reason("pod-gone", "the pod is gone", "nothing to do: the alert is about what was there before"),
    Reason("pod-replaced", "another pod has taken the name of the one that the alert is about", "nothing to do"),
    Reason("owner-gone", "the pod's owner is gone", "nothing to do: the pod will follow it"),
    Reason("bare-pod", "the pod has no controller that would make it again", "run it as a Job"),
    Reason("unknown-kind", "no restart is known of what the pod belongs to", "restart it by hand"),
    Reason("chain-too-long", "the pod has more owners in a row than anything known", "restart it by hand"),
    Reason("kueue", "Kueue queues the job, and owns its suspension", "restart its workers in place"),
    Reason("suspended", "the job is suspended already", "whoever suspended it resumes it"),
    Reason("paused", "the Deployment is paused, so nothing would roll out", "kubectl rollout resume it"),
    Reason("on-delete", "the StatefulSet replaces only pods that somebody deletes", "use updateStrategy RollingUpdate"),
    Reason("no-retry", "the Workflow would fail, for a step has no retry", "set retryStrategy.retryPolicy Always"),
    Reason("max-retry", "the Volcano Job has one try left, and would fail", "raise its maxRetry"),
    Reason("shared-cluster", "the RayJob runs in a cluster that it shares", "give it one of its own"),
    Reason(
        "no-supervisor", "no job of that name runs on this host", "start it with gpufrag run --restartable --name NAME"
    ),
    Reason("ambiguous", "several jobs on this host have that name", "give each a --name of its own"),
    Reason("not-elastic", "no worker of torchrun runs now", "leave --in-place out where there is no torchrun"),
    Reason("elastic-spent", "torchrun may not start its workers again", "raise its --max-restarts"),
    Reason("no-job-number", "the alert names no job of Slurm", "let the sidecar write its target: --write-target"),
    Reason("other-user", "the Slurm job is another user's", "add the user to slurm.users"),
    Reason("no-requeue", "the Slurm job must not be put back into the queue", "submit it with --requeue"),
    Reason("not-running", "the Slurm job does not run now", "nothing to do"),
    Reason("keeps-cluster", "the RayJob cannot be suspended", "set shutdownAfterJobFinishes: true"),
)
"""What `errors.Refused` names."""

REASONS: tuple[Reason, ...] = (
    NOT_ASKED,
    RESOLVED,
    FOREIGN,
    NO_POD,
    NAMESPACE,
    DISABLED,
    FINISHED,
    DELETING,
    NOT_OPTED_IN,
    PAUSED,
    UNDER_WAY,
    STOPPED,
    CLOCK,
    COOL_DOWN,
    BUDGET,
    CIRCUIT,
    HOURLY,
    IN_FLIGHT,
    WAITED,
    NO_MEMORY,
    NOT_FIRING,
    STALE,
    UNCHECKED,
    CHECKPOINT,
    LATE,
    DENIED,
    INVALID,
    AWAY,
    CONFLICT,
    FAULT,
    *_OF_TARGETS,
)
_BY_LABEL = {reason.label: reason for reason in REASONS}


def refused(error: Refused) -> Skip:
    """KeyError for a reason that has no row."""
    return Skip(_BY_LABEL[error.reason], said=str(error))


def failed(error: ClusterError) -> Skip:
    """A cluster's answer as a reason, for a restart that has not begun."""
    reason = next(reason for kind, reason in _BY_ERROR.items() if isinstance(error, kind))
    return Skip(reason, str(error))


_BY_ERROR: Mapping[type[ClusterError], Reason] = {
    Conflict: CONFLICT,
    NotFound: _BY_LABEL["owner-gone"],
    Denied: DENIED,
    Invalid: INVALID,
    ClusterError: AWAY,
}
