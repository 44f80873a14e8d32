"""The one worker: looks at alerts, decides, and carries the restarts under way a bit further at each turn.

A restart is a generator that yields how long it wants to wait, so that one job's wait holds up no other's, and a test
drives all of it with a clock of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count

from ..logs import event
from . import decisions, reasons
from .alerts import Alert
from .announce import Announcer
from .errors import ClusterError, Refused
from .finish import BY_ANOTHER, Result
from .flights import Flight, Flights, advance
from .fuse import Fuse
from .inbox import Inbox, Item
from .judge import Judge
from .kubernetes.cluster import Owner
from .kubernetes.owners import Resolved, resolve
from .kubernetes.steps import Patch
from .metrics import DEDUPLICATED, IN_PROGRESS, QUEUE, RECEIVED, SWEEP, Metrics
from .policy import Restart, screen
from .reasons import Skip
from .record import Memory
from .rescue import Rescue
from .restart import NotBegun, Order, Restarter
from .settings import RestarterConfig
from .sweep import Sweep

IDLE_S, FAULT_S = 60.0, 5.0
log = logging.getLogger(__name__)


@dataclass
class Worker:
    """For one thread, but for `offer`, `stop` and `ready`."""

    config: RestarterConfig
    restarter: Restarter
    fuse: Fuse
    announcer: Announcer
    metrics: Metrics
    check: Callable[[Alert], Skip | None]
    name: str
    """Of this receiver, among all that there ever were."""

    def __post_init__(self) -> None:
        self._clock, self._cluster = self.restarter.finisher.clock, self.restarter.finisher.cluster
        self._inbox = Inbox(self.config.queue)
        self._flights, self._judge = Flights(), Judge(self.config.policy, self.fuse, self._clock)
        self._numbers, self._alive, self._stopped = count(1), threading.Event(), threading.Event()
        finisher, settings = self.restarter.finisher, self.config
        sweep = Sweep(
            self._cluster, tuple(finisher.targets), settings.policy.namespaces, 2 * settings.checkpoint.timeout
        )
        self._rescue = Rescue(sweep, finisher, self.announcer, settings.restart, self._clock.steady())

    @property
    def ready(self) -> bool:
        """Whether all namespaces have been searched for jobs that were left half way. For any thread."""
        return self._rescue.complete

    def offer(self, alerts: Iterable[Alert]) -> bool:
        """Whether there was room for them. From any thread."""
        now = self._clock.steady()
        items = [Item(alert, now, now) for alert in alerts]
        if not self._inbox.put(items):
            return False
        for item in items:
            self.metrics.count(RECEIVED, item.alert.status)
        self.metrics.set(QUEUE, len(self._inbox))
        return True

    @property
    def alive(self) -> bool:
        """Whether `run` is running. For any thread."""
        return self._alive.is_set()

    def run(self) -> None:
        """Until `stop`. A job that is suspended then is resumed by the next start, of this receiver or another."""
        self._alive.set()
        try:
            self._run()
        finally:
            self._flights.abandon()
            self._alive.clear()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._inbox.wait(self.turn())

    def stop(self) -> None:
        """From any thread."""
        self._stopped.set()
        self._inbox.wake()

    def turn(self) -> float:
        """All that is due now; returns the seconds until something will be. No fault ends it."""
        try:
            return min(self._turn(), IDLE_S)
        except Exception:  # without this thread, a suspended job would stay so
            log.exception("a fault of the worker")
            return FAULT_S

    def _turn(self) -> float:
        now = self._clock.steady()
        if now >= self._rescue.due_s:
            self._search(now)
        for flight in self._flights.due(now):
            self._advance(flight)
        if item := self._inbox.take(now):  # one, for a suspended job must not wait for a thousand alerts
            self._look_safely(item)
        self.metrics.set(QUEUE, len(self._inbox))
        self.metrics.set(IN_PROGRESS, len(self._flights))
        dues = (self._rescue.due_s, self._flights.next_due_s(), self._inbox.next_due_s())
        return max(0.0, min(due for due in dues if due is not None) - self._clock.steady())

    def _look_safely(self, item: Item) -> None:
        try:
            self._look(item)
        except Exception as error:
            log.exception("a fault in looking at an alert")
            self.announcer.refused(item.alert, Skip(reasons.FAULT, f"{type(error).__name__}: {error}"))

    def _look(self, item: Item) -> None:
        alert = item.alert
        if skip := screen(alert, self.config.policy):
            self.announcer.refused(alert, skip)
            return
        try:
            targets = self.restarter.finisher.targets
            job = resolve(self._cluster, alert.namespace or "", alert.pod or "", targets=targets)
        except Refused as refusal:
            self.announcer.refused(alert, reasons.refused(refusal))
        except ClusterError as error:
            self._refuse(item, reasons.failed(error))
        else:
            self._judge_job(item, job)

    def _judge_job(self, item: Item, job: Resolved) -> None:
        if job.owner.uid in self._flights:
            self.metrics.count(DEDUPLICATED)
            return
        decision = self._judge.decide(item, job, under_way=len(self._flights))
        if isinstance(decision, Skip):
            self._refuse(item, decision, job)
        else:
            self._start(item, job)

    def _refuse(self, item: Item, skip: Skip, job: Resolved | None = None) -> None:
        """Or look again: Alertmanager would send the alert again only after hours."""
        now = self._clock.steady()
        passes = skip.reason in reasons.PASSING and now - item.came_s < self.config.policy.max_wait
        tells = (not passes or skip.reason in reasons.TOLD_AT_ONCE) and skip.reason != item.told
        if tells:
            self.announcer.refused(item.alert, skip, job)
        if passes:
            told = skip.reason if tells else item.told
            self._inbox.put_back(replace(item, due_s=now + self.config.restart.retry, told=told))
        elif job is not None and not self.config.policy.dry_run:
            self._remember(job.owner, self._judge.refused(skip, job))

    def _start(self, item: Item, job: Resolved) -> None:
        def decide_again(fresh: Resolved) -> Restart | Skip:
            return self._judge.decide(item, fresh, under_way=len(self._flights) - 1)

        by = f"{self.name}-{next(self._numbers)}"
        order = Order(item.alert, job, by, decide_again, self.check, self._judge.claimed, self.announcer.began)
        if self.config.policy.dry_run:
            self._rehearse(item, order)
            return
        flight = Flight(item, job, job.owner.ref, self.restarter.restart(order))
        self._flights.add(flight)
        self._advance(flight)

    def _rehearse(self, item: Item, order: Order) -> None:
        try:
            result = self.restarter.rehearse(order)
        except NotBegun as end:
            self._refuse(item, end.skip, order.job)
        else:
            self.announcer.rehearsed(result, order.alert, order.job.owner.ref)

    def _advance(self, flight: Flight) -> None:
        try:
            end = advance(flight, self._clock.steady())
        except Exception as error:
            log.exception("a fault in a restart; it will be taken up again")
            end = Result(decisions.FAILED, reasons.FAULT.label, f"{reasons.FAULT.text}: {error}; it is taken up again.")
        if end is None:
            return
        self._flights.drop(flight)
        if end is BY_ANOTHER:
            event(log, logging.INFO, "another receiver has brought a restart to its end", job=flight.ref)
            return
        if isinstance(end, Skip):
            assert flight.item is not None, "what others began is not refused"
            self._refuse(flight.item, end, flight.job)
            return
        self.announcer.ended(end, flight.alert, flight.ref)
        if end.outcome == decisions.FAILED:
            self.fuse.failed(f"{flight.ref}: {end.label}")

    def _remember(self, owner: Owner, memory: Memory | None) -> None:
        if memory is None:
            return
        try:
            Patch("stopped").run(self._cluster, owner, memory.annotations())
        except ClusterError as error:  # the next alert leads to the same again
            event(log, logging.WARNING, "a job could not be marked as stopped", job=owner.ref, reason=error)

    def _search(self, now: float) -> None:
        if self._rescue.search(now, self._flights.uids, self._take_up):
            self.metrics.set(SWEEP, self._clock.now())
        self.fuse.refresh()

    def _take_up(self, owner: Owner) -> None:
        flight = Flight(None, None, owner.ref, self.restarter.finisher.finish(owner.ref))
        self._flights.add(flight)
        self._advance(flight)
