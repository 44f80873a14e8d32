"""The worker: takes alerts from a queue, decides, and advances the restarts in progress.

A restart is a generator that yields how long it waits, so one thread carries out all, and a test drives the clock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from ..logs import event
from . import decisions, reasons
from .alerts import Alert
from .backend import BackendError, Job
from .circuit import STORE_ERRORS, CircuitBreaker
from .clock import Clock, LocalHistory
from .completion import BY_ANOTHER
from .decisions import DecisionLog, Result
from .metrics import DEDUPLICATED, IN_PROGRESS, QUEUE, RECEIVED, SWEEP, Metrics
from .policy import Approved, Facts, decide, screen
from .reasons import Reason, Refused
from .record import DAY_S
from .recovery import Recovery
from .restart import Order, Restarter
from .settings import RestarterConfig

MAX_QUEUED = 1000
RETRY_S = 5.0
"""Before a refused alert is tried again."""
IDLE_S, FAULT_S = 60.0, 5.0
STUCK_S = 900.0
"""A turn that takes longer than this makes the worker unhealthy."""
_WITH_CONSEQUENCES = frozenset({reasons.HOURLY_LIMIT, reasons.INEFFECTIVE})
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueuedAlert:
    """Times are by the steady clock."""

    alert: Alert
    arrived_s: float
    due_s: float
    reported: Reason | None = None
    """The refusal that was already published."""


class AlertQueue:
    """Bounded, in order of arrival. Any thread may put; one takes."""

    def __init__(self, max_length: int = MAX_QUEUED) -> None:
        self._max_length = max_length
        self._items: list[QueuedAlert] = []
        self._woken = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Iterable[QueuedAlert]) -> bool:
        """Put all of them, or none if there is not enough room."""
        new = list(items)
        with self._changed:
            if len(self._items) + len(new) > self._max_length:
                return False
            self._items += new
        self.wake()
        return True

    def put_back(self, item: QueuedAlert) -> None:
        """Put one that was taken, even beyond the bound."""
        with self._changed:
            self._items.append(item)

    def take(self, now_s: float) -> QueuedAlert | None:
        """Return the first that is due."""
        with self._changed:
            place = next((place for place, item in enumerate(self._items) if item.due_s <= now_s), None)
            return None if place is None else self._items.pop(place)

    def next_due_s(self) -> float | None:
        with self._changed:
            return min((item.due_s for item in self._items), default=None)

    def wait(self, seconds: float) -> None:
        """Wait until `put` or `wake` is called, or was since the last wait, for at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._woken, seconds)
            self._woken = False

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify()


@dataclass
class InProgress:
    """A restart in progress. `item` is None if another process began it."""

    job: Job
    steps: Generator[float, None, Result | Refused]
    item: QueuedAlert | None = None
    due_s: float = 0.0


@dataclass(frozen=True)
class DecisionContext:
    """Decides with all facts that this process has: the job's, all jobs', and its own history."""

    config: RestarterConfig
    circuit: CircuitBreaker
    clock: Clock
    history: LocalHistory = field(default_factory=LocalHistory)

    def decide(self, item: QueuedAlert, job: Job, in_progress: int) -> Approved | Refused:
        try:
            fleet = self.circuit.fleet(in_progress, self.history)
        except STORE_ERRORS as error:
            return Refused(reasons.CIRCUIT_UNAVAILABLE, str(error))
        steady = self.clock.steady()
        facts = Facts(
            alert=item.alert,
            job=job,
            now_s=self.clock.now(),
            fleet=fleet,
            waited_s=steady - item.arrived_s,
            own_age_s=self.history.age_s(job.uid, steady),
            own_day=self.history.within(DAY_S, steady, job.uid),
        )
        return decide(facts, self.config.policy)

    def count(self, job: Job) -> None:
        """Count a restart that begins. Raises STORE_ERRORS."""
        self.circuit.begun(job.namespace)
        self.history.begin(job.uid, self.clock.steady())
        if job.record.ineffective:
            self.circuit.failed(f"{job.name} needs another restart")


@dataclass
class Worker:
    """For one thread, except `offer`, `stop` and the properties. `name` identifies this restarter among all."""

    config: RestarterConfig
    restarter: Restarter
    circuit: CircuitBreaker
    decisions: DecisionLog
    metrics: Metrics
    recheck: Callable[[Alert], Refused | None]
    name: str

    def __post_init__(self) -> None:
        self._clock, self._backend = self.restarter.clock, self.restarter.backend
        self._queue = AlertQueue()
        self._running: dict[str, InProgress] = {}
        self._context = DecisionContext(self.config, self.circuit, self._clock)
        self._numbers, self._alive, self._stopped = count(1), threading.Event(), threading.Event()
        self._turned_s = self._clock.steady()
        self._recovery = Recovery(
            self.restarter.completion,
            self.decisions,
            self.circuit,
            2 * self.config.checkpoint.timeout,
            self._clock.steady(),
        )

    @property
    def ready(self) -> bool:
        """Whether all jobs have been searched once for unfinished restarts."""
        return self._recovery.complete

    @property
    def alive(self) -> bool:
        """Whether the worker runs and is not stuck in a call."""
        return self._alive.is_set() and self._clock.steady() - self._turned_s < STUCK_S

    def offer(self, alerts: Iterable[Alert]) -> bool:
        """Queue alerts; False: the queue is full."""
        now = self._clock.steady()
        items = [QueuedAlert(alert, now, now) for alert in alerts]
        if not self._queue.put(items):
            return False
        for item in items:
            self.metrics.count(RECEIVED, item.alert.status)
        self.metrics.set(QUEUE, len(self._queue))
        return True

    def run(self) -> None:
        """Run until `stop`. The next restarter completes the restarts in progress."""
        self._alive.set()
        try:
            while not self._stopped.is_set():
                self._queue.wait(self.turn())
        finally:
            for one in list(self._running.values()):
                one.steps.close()
            self._running.clear()
            self._alive.clear()

    def stop(self) -> None:
        self._stopped.set()
        self._queue.wake()

    def turn(self) -> float:
        """Do all that is due; return the seconds until something will be. Never raises."""
        try:
            return min(self._turn(), IDLE_S)
        except Exception:  # without this thread, a suspended job would stay suspended
            log.exception("the worker failed")
            return FAULT_S
        finally:
            self._turned_s = self._clock.steady()

    def _turn(self) -> float:
        now = self._clock.steady()
        if now >= self._recovery.due_s and self._recovery.search(now, frozenset(self._running), self._take_over):
            self.metrics.set(SWEEP, self._clock.now())
        for one in [one for one in self._running.values() if one.due_s <= now]:
            self._advance(one)
        if item := self._queue.take(now):  # only one: a suspended job must not wait for a thousand alerts
            self._look(item)
        self.metrics.set(QUEUE, len(self._queue))
        self.metrics.set(IN_PROGRESS, len(self._running))
        dues = [self._recovery.due_s, *(one.due_s for one in self._running.values())]
        queued_s = self._queue.next_due_s()
        return max(0.0, min(dues if queued_s is None else [*dues, queued_s]) - self._clock.steady())

    def _look(self, item: QueuedAlert) -> None:
        job = None
        try:
            if refusal := screen(item.alert, self.config.policy):
                raise refusal
            job = self._backend.find(item.alert)
            if job.uid in self._running:
                self.metrics.count(DEDUPLICATED)
                return
            decision = self._context.decide(item, job, len(self._running))
            if isinstance(decision, Refused):
                raise decision
            self._start(item, job)
        except Refused as refusal:
            self._refuse(item, refusal, job)
        except BackendError as error:
            self._refuse(item, error.refusal())
        except Exception as error:
            log.exception("cannot handle an alert")
            self.decisions.refused(item.alert, Refused(reasons.INTERNAL_ERROR, f"{type(error).__name__}: {error}"))

    def _start(self, item: QueuedAlert, job: Job) -> None:
        def decide_again(fresh: Job) -> Approved | Refused:
            return self._context.decide(item, fresh, len(self._running) - 1)

        by = f"{self.name}-{next(self._numbers)}"
        order = Order(item.alert, job, by, decide_again, self.recheck, self._context.count)
        if self.config.policy.dry_run:
            self.decisions.ended(self.restarter.rehearse(order), item.alert, job)
            return
        self._add(InProgress(job, self.restarter.restart(order), item))

    def _take_over(self, job: Job) -> None:
        self._add(InProgress(job, self.restarter.completion.finish(job)))

    def _add(self, one: InProgress) -> None:
        self._running[one.job.uid] = one
        self._advance(one)

    def _advance(self, one: InProgress) -> None:
        try:
            one.due_s = self._clock.steady() + next(one.steps)
            return
        except StopIteration as end:
            result: Result | Refused = end.value
        except Exception as error:
            log.exception("a restart failed unexpectedly")
            text = f"Internal error ({error}). The restarter will complete the restart."
            result = Result(decisions.FAILED, reasons.INTERNAL_ERROR.label, text)
        del self._running[one.job.uid]
        if result is BY_ANOTHER:
            event(log, logging.INFO, "another restarter completed a restart", job=one.job.name)
        elif isinstance(result, Refused):
            assert one.item is not None, "a restart that another process began is not refused"
            self._refuse(one.item, result, one.job)
        else:
            self.decisions.ended(result, one.item.alert if one.item else None, one.job)
            if result.outcome == decisions.FAILED:
                self.circuit.failed(f"{one.job.name}: {result.label}")

    def _refuse(self, item: QueuedAlert, refusal: Refused, job: Job | None = None) -> None:
        """Publish the refusal, or try again."""
        now = self._clock.steady()
        reason = refusal.reason
        retries = reason in reasons.RETRIED and now - item.arrived_s < self.config.policy.max_wait
        if reason != item.reported and (not retries or reason in reasons.REPORTED_AT_ONCE):
            self.decisions.refused(item.alert, refusal, job)
            item = replace(item, reported=reason)
        if retries:
            self._queue.put_back(replace(item, due_s=now + RETRY_S))
        elif job is not None and refusal.reason in _WITH_CONSEQUENCES and not self.config.policy.dry_run:
            self._apply(refusal, job, item.alert)

    def _apply(self, refusal: Refused, job: Job, alert: Alert) -> None:
        """Draw the consequences of a refusal: for all jobs, and for this one. A forged alert has none."""
        if self.recheck(alert) is not None:
            return
        if refusal.reason == reasons.HOURLY_LIMIT:
            self.circuit.open(refusal.reason.text)
        if refusal.reason != reasons.INEFFECTIVE or job.record.stopped is not None:
            return
        self.circuit.failed(f"restarts did not help {job.name}")
        try:
            self._backend.remember(job, replace(job.record, stopped=refusal.detail).annotations())
        except BackendError as error:  # the next alert leads here again
            event(log, logging.WARNING, "cannot mark a job as stopped", job=job.name, reason=error)
