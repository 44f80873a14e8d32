"""Whether a job is restarted: facts, settings and what is remembered in, Restart or Skip out. No clock, no call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import reasons
from .alerts import FIRING, Alert
from .kubernetes.cluster import ANNOTATIONS, Owner, Pod
from .reasons import Skip
from .record import DAY_S, Memory
from .settings import PolicySettings

ACTION, RESTART = "gpufrag_action", "restart"
OPT_IN = f"{ANNOTATIONS}/restart"
PAUSE = f"{ANNOTATIONS}/pause"
CLOCK_SLACK_S = 300.0
"""By so much two hosts' clocks may differ."""


@dataclass(frozen=True)
class Fleet:
    """What is so over all jobs."""

    in_flight: int = 0
    begun_in_hour: int = 0
    open_because: str | None = None
    """Why the circuit is open; None where it is closed."""


@dataclass(frozen=True)
class Facts:
    """One moment of one job. `own_age_s` and `own_day` are by a clock that cannot jump, and know only this process."""

    alert: Alert
    owner: Owner
    pod: Pod
    now_s: float
    fleet: Fleet = Fleet()
    waited_s: float = 0.0
    """Since the alert came."""
    own_age_s: float | None = None
    """Since this process began a restart of this job; None: it has not."""
    own_day: int = 0
    """Restarts of this job that this process began within a day."""

    @property
    def memory(self) -> Memory:
        return Memory.read(self.owner.annotations)


@dataclass(frozen=True)
class Restart:
    """Go on. `useless`: how many restarts in a row before this one did not help."""

    useless: int


def screen(alert: Alert, settings: PolicySettings) -> Skip | None:
    """What the alert alone can tell; None: look at its job."""
    if alert.labels.get(ACTION) != RESTART:
        return Skip(reasons.NOT_ASKED)
    if alert.status != FIRING:
        return Skip(reasons.RESOLVED)
    if not settings.enabled:
        return Skip(reasons.DISABLED)
    if any(alert.labels.get(name) != value for name, value in settings.alert_labels.items()):
        return Skip(reasons.FOREIGN)
    if not alert.namespace or not alert.pod:
        return Skip(reasons.NO_POD)
    if alert.namespace not in settings.namespaces:
        return Skip(reasons.NAMESPACE, alert.namespace)
    return None


def decide(facts: Facts, settings: PolicySettings) -> Restart | Skip:
    """The first of CHECKS that objects, in their order: what ends by itself comes after what people must mend."""
    refusal = screen(facts.alert, settings)
    for check in CHECKS:
        refusal = refusal or check(facts, settings)
    return refusal or Restart(_useless(facts, settings))


def _job_is_there(facts: Facts, settings: PolicySettings) -> Skip | None:
    owner = facts.owner
    if owner.namespace not in settings.namespaces:
        return Skip(reasons.NAMESPACE, owner.namespace)
    if owner.deleting:
        return Skip(reasons.DELETING)
    return Skip(reasons.FINISHED) if owner.finished else None


def _job_wants_it(facts: Facts, settings: PolicySettings) -> Skip | None:
    annotations = facts.owner.annotations
    if annotations.get(OPT_IN) != "true":
        return Skip(reasons.NOT_OPTED_IN)
    paused = annotations.get(PAUSE, "false") != "false"
    return Skip(reasons.PAUSED) if paused else None


def _nobody_is_at_it(facts: Facts, settings: PolicySettings) -> Skip | None:
    return Skip(reasons.UNDER_WAY, facts.memory.phase) if facts.memory.phase else None


def _it_helps(facts: Facts, settings: PolicySettings) -> Skip | None:
    if facts.memory.stopped:
        return Skip(reasons.STOPPED, facts.memory.stopped)
    useless = _useless(facts, settings)
    if useless < settings.useless_restarts:
        return None
    return Skip(reasons.STOPPED, f"the alert was back within {_told(settings.benefit_window)} of {useless} restarts")


def _useless(facts: Facts, settings: PolicySettings) -> int:
    """How many of the last restarts, in a row, did not help: after each the alert was back in no time, or stayed."""
    latest = facts.memory.latest_s
    since = facts.alert.starts_at_s if facts.alert.starts_at_s is not None else facts.now_s
    returned = latest is not None and since - latest <= settings.benefit_window
    return facts.memory.useless + 1 if returned else 0


def _clock_is_right(facts: Facts, settings: PolicySettings) -> Skip | None:
    latest = facts.memory.latest_s
    wrong = latest is not None and latest > facts.now_s + CLOCK_SLACK_S
    return Skip(reasons.CLOCK) if wrong else None


def _cooled_down(facts: Facts, settings: PolicySettings) -> Skip | None:
    latest = facts.memory.latest_s
    by_wall_clock = [] if latest is None else [facts.now_s - latest]
    ages = by_wall_clock + ([] if facts.own_age_s is None else [facts.own_age_s])
    left = cool_down_s(_spent(facts), settings) - min(ages, default=DAY_S)
    return Skip(reasons.COOL_DOWN, f"{_told(left)} are left") if ages and left > 0 else None


def cool_down_s(spent: int, settings: PolicySettings) -> float:
    """After `spent` restarts within a day: doubled by each but the first, and at most a day."""
    return min(settings.cool_down * 2.0 ** min(max(spent - 1, 0), 64), max(DAY_S, settings.cool_down))


def _spent(facts: Facts) -> int:
    return max(len(facts.memory.within_day(facts.now_s)), facts.own_day)


def _within_budget(facts: Facts, settings: PolicySettings) -> Skip | None:
    spent = _spent(facts)
    return Skip(reasons.BUDGET, f"{spent} of {settings.max_per_day}") if spent >= settings.max_per_day else None


def _circuit_is_closed(facts: Facts, settings: PolicySettings) -> Skip | None:
    why = facts.fleet.open_because
    return None if why is None else Skip(reasons.CIRCUIT, why)


def _news(facts: Facts, settings: PolicySettings) -> Skip | None:
    return Skip(reasons.WAITED, _told(facts.waited_s)) if facts.waited_s > settings.max_wait else None


def _fleet_bears_it(facts: Facts, settings: PolicySettings) -> Skip | None:
    if facts.fleet.in_flight >= settings.max_in_flight:
        return Skip(reasons.IN_FLIGHT, str(facts.fleet.in_flight))
    if facts.fleet.begun_in_hour >= settings.max_per_hour:
        return Skip(reasons.HOURLY, str(facts.fleet.begun_in_hour))
    return None


CHECKS: tuple[Callable[[Facts, PolicySettings], Skip | None], ...] = (
    _job_is_there,
    _job_wants_it,
    _nobody_is_at_it,
    _clock_is_right,
    _circuit_is_closed,
    _within_budget,
    _cooled_down,
    _it_helps,
    _news,
    _fleet_bears_it,
)


def _told(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{max(seconds, 0):.0f} s"
