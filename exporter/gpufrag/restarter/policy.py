"""Whether a job is restarted. Pure: facts and settings in, Approved or Refused out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..metrics.names import Label
from . import reasons
from .alerts import FIRING, Alert
from .backend import Job
from .reasons import Refused
from .record import DAY_S, OPT_IN, PAUSE
from .settings import PolicySettings

ACTION, RESTART = Label.ACTION, "restart"
MAX_CLOCK_SKEW_S = 300.0


@dataclass(frozen=True)
class Fleet:
    """Facts about all jobs."""

    in_progress: int = 0
    begun_in_hour: int = 0
    circuit_open: str | None = None
    """Why the circuit breaker is open; None: it is closed."""


@dataclass(frozen=True)
class Facts:
    """Facts about one job at one moment."""

    alert: Alert
    job: Job
    now_s: float
    """Unix time."""
    fleet: Fleet = Fleet()
    waited_s: float = 0.0
    """Since the alert arrived."""
    own_age_s: float | None = None
    """Since this process last began a restart of the job, by a clock that does not jump; None: it has not."""
    own_day: int = 0
    """Restarts of the job that this process began within a day, by the same clock."""

    @property
    def restarts_today(self) -> int:
        return max(len(self.job.record.within_day(self.now_s)), self.own_day)


@dataclass(frozen=True)
class Approved:
    """The job may be restarted."""

    ineffective: int
    """How many restarts in a row before this one did not help."""


def screen(alert: Alert, settings: PolicySettings) -> Refused | None:
    """Judge the alert alone; None: look at its job."""
    if alert.labels.get(ACTION) != RESTART:
        return Refused(reasons.NO_RESTART_LABEL)
    if alert.status != FIRING:
        return Refused(reasons.RESOLVED)
    if not settings.enabled:
        return Refused(reasons.DISABLED)
    if any(alert.labels.get(name) != value for name, value in settings.alert_labels.items()):
        return Refused(reasons.WRONG_ALERT_LABELS)
    return None


def decide(facts: Facts, settings: PolicySettings) -> Approved | Refused:
    """Return the first objection of CHECKS. What a person must fix comes before what ends on its own."""
    refusal = screen(facts.alert, settings)
    for check in CHECKS:
        refusal = refusal or check(facts, settings)
    return refusal or Approved(_ineffective(facts, settings))


def _check_state(facts: Facts, settings: PolicySettings) -> Refused | None:
    if facts.job.deleting:
        return Refused(reasons.JOB_DELETING)
    return Refused(reasons.JOB_FINISHED) if facts.job.finished else None


def _check_consent(facts: Facts, settings: PolicySettings) -> Refused | None:
    annotations = facts.job.annotations
    if annotations.get(OPT_IN) != "true":
        return Refused(reasons.NOT_OPTED_IN)
    return Refused(reasons.PAUSED) if annotations.get(PAUSE, "false") != "false" else None


def _check_idle(facts: Facts, settings: PolicySettings) -> Refused | None:
    phase = facts.job.record.phase
    return Refused(reasons.RESTART_IN_PROGRESS, phase) if phase else None


def _check_clock(facts: Facts, settings: PolicySettings) -> Refused | None:
    latest = facts.job.record.latest_s
    skewed = latest is not None and latest > facts.now_s + MAX_CLOCK_SKEW_S
    return Refused(reasons.CLOCK_SKEW) if skewed else None


def _check_circuit(facts: Facts, settings: PolicySettings) -> Refused | None:
    why = facts.fleet.circuit_open
    return None if why is None else Refused(reasons.CIRCUIT_OPEN, why)


def _check_budget(facts: Facts, settings: PolicySettings) -> Refused | None:
    used = facts.restarts_today
    return Refused(reasons.DAILY_BUDGET, f"{used} of {settings.max_per_day}") if used >= settings.max_per_day else None


def _check_cooldown(facts: Facts, settings: PolicySettings) -> Refused | None:
    latest = facts.job.record.latest_s
    ages = [] if latest is None else [facts.now_s - latest]
    ages += [] if facts.own_age_s is None else [facts.own_age_s]
    left = cooldown_s(facts.restarts_today, settings) - min(ages, default=DAY_S)
    return Refused(reasons.COOLDOWN, f"{format_wait(left)} left") if ages and left > 0 else None


def cooldown_s(restarts_today: int, settings: PolicySettings) -> float:
    """Return the wait after the last restart, in seconds: doubled by each further restart of a day, up to a day."""
    doubled = settings.cooldown * 2.0 ** min(max(restarts_today - 1, 0), 64)
    return min(doubled, max(DAY_S, settings.cooldown))


def _check_benefit(facts: Facts, settings: PolicySettings) -> Refused | None:
    if facts.job.record.stopped:
        return Refused(reasons.INEFFECTIVE, facts.job.record.stopped)
    count = _ineffective(facts, settings)
    if count < settings.max_ineffective_restarts:
        return None
    within = format_wait(settings.benefit_window)
    return Refused(reasons.INEFFECTIVE, f"the alert fired again within {within} of {count} restarts")


def _ineffective(facts: Facts, settings: PolicySettings) -> int:
    """Count the last restarts in a row after which the alert fired again soon, or never stopped firing."""
    latest = facts.job.record.latest_s
    since = facts.alert.starts_at_s if facts.alert.starts_at_s is not None else facts.now_s
    returned = latest is not None and since - latest <= settings.benefit_window
    return facts.job.record.ineffective + 1 if returned else 0


def _check_age(facts: Facts, settings: PolicySettings) -> Refused | None:
    expired = facts.waited_s > settings.max_wait
    return Refused(reasons.ALERT_EXPIRED, format_wait(facts.waited_s)) if expired else None


def _check_fleet(facts: Facts, settings: PolicySettings) -> Refused | None:
    if facts.fleet.in_progress >= settings.max_in_flight:
        return Refused(reasons.CONCURRENCY_LIMIT, str(facts.fleet.in_progress))
    if facts.fleet.begun_in_hour >= settings.max_per_hour:
        return Refused(reasons.HOURLY_LIMIT, str(facts.fleet.begun_in_hour))
    return None


CHECKS: tuple[Callable[[Facts, PolicySettings], Refused | None], ...] = (
    _check_state,
    _check_consent,
    _check_idle,
    _check_clock,
    _check_circuit,
    _check_budget,
    _check_cooldown,
    _check_benefit,
    _check_age,
    _check_fleet,
)


def format_wait(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{max(seconds, 0):.0f} s"
