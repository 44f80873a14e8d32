"""One restart: recheck the alert, defragment if the job opted in, claim the job, save a checkpoint, order the stop.

Each part is a generator that yields the seconds until it continues, so one job's wait delays no other.
Until the order to stop, nothing has happened to the job, and any obstacle ends the attempt. `completion` does the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from ..checkpoint.protocol import CheckpointFailed, DefragmentationFailed
from ..logs import event
from . import decisions, reasons
from .alerts import Alert
from .backend import BackendError, Conflict, Denied, Invalid, Job, JobBackend, NotFound
from .checkpoint import Checkpoint, Checkpointer
from .circuit import STORE_ERRORS
from .clock import Clock
from .completion import Completion
from .decisions import DecisionLog, Result
from .defragment import Defragmenter
from .metrics import CHECKPOINT, DEFRAGMENTATIONS, ENOUGH, FAILED, NOT_CHECKED, NOT_ENOUGH, STILL_FIRING, Metrics
from .policy import Approved, format_wait
from .reasons import Refused
from .record import CLAIMED, DEFRAGMENT, WAITING, RestartRecord
from .retry import delays, retry_until
from .settings import RestarterConfig

CLAIM_TRIES = 6
RECHECK_AFTER_S = 5.0
"""A wait after which the alert may have ended."""
WATCH_S = 15.0
"""Between two looks at whether the alert has ended after a defragmentation."""
NO_RANKS = (
    "this restarter has no access to the ranks (Kubernetes: set checkpoint.token_file; Slurm: run gpufrag defragment "
    "on the job's nodes)"
)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Order:
    """The job to restart, and why."""

    alert: Alert
    job: Job
    by: str
    """Identifies this attempt among all attempts of all restarters."""
    decide: Callable[[Job], Approved | Refused]
    """Called again with the job as it is when it is claimed."""
    recheck: Callable[[Alert], Refused | None]
    """Whether the alert still fires."""
    count: Callable[[Job], None]
    """Counts the restart. Raises STORE_ERRORS; may be called again."""


@dataclass(frozen=True)
class Restarter:
    """Begins restarts, and completes those that it began."""

    backend: JobBackend
    checkpointer: Checkpointer
    defragmenter: Defragmenter | None
    config: RestarterConfig
    clock: Clock
    decisions: DecisionLog
    metrics: Metrics
    completion: Completion

    def restart(self, order: Order) -> Generator[float, None, Result | Refused]:
        """Return how the restart ended, or why it did not begin."""
        try:
            self._recheck(order)
            if (spared := (yield from self._defragment(order))) is not None:
                return spared
            job = yield from self._claim(order, self._claimed)
            resend_until_s = yield from self._begin(order, job)
        except Refused as refusal:
            return refusal
        return (yield from self.completion.finish(job, resend_until_s))

    def rehearse(self, order: Order) -> Result:
        """Do a dry run: the backend judges the order and stores nothing. Raises Refused."""
        self._recheck(order)
        job = order.job
        self.backend.check(job)
        try:
            self.backend.stop(job, job.record, dry_run=True)
        except BackendError as error:
            raise error.refusal() from error
        what = "defragment and, if that does not help, restart" if self._may_defragment(order, job) else "restart"
        return Result(decisions.WOULD_RESTART, "dry-run", f"Would {what} {job.name}: {describe(order.alert)}")

    def _recheck(self, order: Order) -> None:
        if refusal := order.recheck(order.alert):
            raise refusal

    def _recheck_after(self, order: Order, since_s: float) -> None:
        """Recheck after a wait, during which the alert may have ended."""
        if self.clock.steady() - since_s >= RECHECK_AFTER_S:
            self._recheck(order)

    def _may_defragment(self, order: Order, job: Job) -> bool:
        """Not again if the last one did not help for long, or never ended the alert.

        Raises Refused while the effect of the last one is not known: another restarter may be watching the alert.
        """
        if job.annotations.get(DEFRAGMENT) != "true":
            return False
        latest, began = job.record.defragmented_s, order.alert.starts_at_s
        if latest is None:
            return True
        age = self.clock.now() - latest
        if 0 <= age < self.config.defragment.watch:
            raise Refused(reasons.DEFRAGMENTED, f"{format_wait(age)} ago")
        return age >= self.config.policy.benefit_window and (began is None or began > latest)

    def _defragment(self, order: Order) -> Generator[float, None, Result | None]:
        """Return the result if a restart is not needed any more; None: restart the job."""
        if not self._may_defragment(order, order.job):
            return None
        if self.defragmenter is None:
            self._not_spared(order, order.job, FAILED, NO_RANKS)
            return None
        order = replace(order, by=f"{order.by}-defragment")
        job = yield from self._claim(order, self._claimed_to_defragment)
        try:
            done = yield from self.defragmenter.run(job)
        except DefragmentationFailed as error:
            yield from self._release(order, job)
            self._not_spared(order, job, FAILED, str(error))
            return None
        except GeneratorExit:  # the restarter exits
            with suppress(BackendError):
                self._unclaim(order, job, CLAIMED)
            raise
        yield from self._release(order, job, self.clock.now() if done.enough else None)
        if not done.enough:
            self._not_spared(order, job, NOT_ENOUGH, done.text)
            return None
        label = yield from self._watch_alert(order)
        if label == STILL_FIRING:
            self._not_spared(order, job, label, f"{done.text}, but the alert still fires")
            return None
        self.metrics.count(DEFRAGMENTATIONS, label)
        unchecked = " Prometheus did not confirm that the alert ended." if label == NOT_CHECKED else ""
        text = f"Defragmented, so the job is not restarted: {done.text}.{unchecked}"
        return Result(decisions.DEFRAGMENTED, "defragmented", text)

    def _not_spared(self, order: Order, job: Job, label: str, why: str) -> None:
        self.metrics.count(DEFRAGMENTATIONS, label)
        text = f"Defragmentation did not avoid the restart: {why}."
        self.decisions.publish(decisions.NOT_DEFRAGMENTED, label, text, order.alert, job)

    def _watch_alert(self, order: Order) -> Generator[float, None, str]:
        """Wait until the alert ends; its peaks may still be fragmented. Return the label of what was seen last."""
        if self.config.prometheus.url is None:
            return NOT_CHECKED
        until_s = self.clock.steady() + self.config.defragment.watch
        while True:
            refusal = order.recheck(order.alert)
            if refusal is not None and refusal.reason is reasons.NOT_FIRING:
                return ENOUGH
            if self.clock.steady() >= until_s:
                return STILL_FIRING if refusal is None else NOT_CHECKED
            yield WATCH_S

    def _claim(
        self, order: Order, claimed: Callable[[Order, Job, Approved], RestartRecord]
    ) -> Generator[float, None, Job]:
        """Record on the job that its restart is in progress. If several restarters try at once, one succeeds."""
        error: BackendError = Conflict("the job was not claimed")
        for delay in islice(delays(), CLAIM_TRIES):
            try:
                return self._try_to_claim(order, claimed)
            except (NotFound, Denied, Invalid) as failure:
                raise failure.refusal() from None
            except BackendError as failure:
                error = failure
            yield delay
        raise error.refusal()

    def _try_to_claim(self, order: Order, claimed: Callable[[Order, Job, Approved], RestartRecord]) -> Job:
        job = self.backend.find(order.alert, order.job)
        if job.record.by == order.by:  # claimed before, and the answer was lost
            return job
        decision = order.decide(job)
        if isinstance(decision, Refused):
            raise decision
        self.backend.check(job)
        return self.backend.remember(job, claimed(order, job, decision).annotations())

    def _claimed(self, order: Order, job: Job, decision: Approved) -> RestartRecord:
        return job.record.claimed(self.clock.now(), order.by, order.alert.fingerprint, decision.ineffective)

    def _claimed_to_defragment(self, order: Order, job: Job, decision: Approved) -> RestartRecord:
        self._may_defragment(order, job)  # by another restarter, since the job was found
        return job.record.claimed_to_defragment(order.by, order.alert.fingerprint)

    def _begin(self, order: Order, job: Job) -> Generator[float, None, float]:
        """Return until when the order may be sent again, by the steady clock."""
        saved = Checkpoint("")
        try:
            yield from self._count(order, job)
            saved = yield from self._save(job)
            return (yield from self._stop(order, job, saved))
        except Refused:
            saved.let_go()
            yield from self._release(order, job)
            raise
        except NotFound as error:
            raise error.refusal() from None
        except GeneratorExit:  # the restarter exits
            saved.let_go()
            with suppress(BackendError):
                self._unclaim(order, job, CLAIMED)
            raise

    def _count(self, order: Order, job: Job) -> Generator[float, None, None]:
        began_s = self.clock.steady()
        try:
            yield from retry_until(lambda: order.count(job), self.clock, began_s + self.config.policy.max_wait)
        except STORE_ERRORS as error:
            raise Refused(reasons.CIRCUIT_UNAVAILABLE, str(error)) from None
        self._recheck_after(order, began_s)

    def _save(self, job: Job) -> Generator[float, None, Checkpoint]:
        began_s = self.clock.steady()
        try:
            return (yield from self.checkpointer.save(job, self.config.checkpoint.timeout))
        except CheckpointFailed as error:
            if self.config.checkpoint.on_timeout == "abort":
                raise Refused(reasons.CHECKPOINT_FAILED, str(error)) from None
            return Checkpoint(f"No checkpoint ({error}): work since the last one is lost.")
        finally:
            self.metrics.observe(CHECKPOINT, self.clock.steady() - began_s)

    def _stop(self, order: Order, job: Job, saved: Checkpoint) -> Generator[float, None, float]:
        now_s = self.clock.steady()
        until_s = now_s + (self.config.checkpoint.hold if saved.saved else self.config.policy.max_wait)
        text = f"Restarting {job.name}: {describe(order.alert)} {saved.text} Cost: {job.cost}."
        self.decisions.publish(decisions.STARTED, "started", text, order.alert, job)
        call = partial(self._order, order, job, now_s, until_s)
        try:
            yield from retry_until(call, self.clock, until_s + self.config.policy.max_wait)
        except NotFound:
            raise
        except BackendError as error:
            raise Refused(reasons.CHECKPOINT_EXPIRED, str(error)) from None
        return until_s

    def _order(self, order: Order, job: Job, since_s: float, until_s: float) -> None:
        """Stop the job, unless an earlier call did so. Raises Refused if it must not happen."""
        job = self.backend.read(job)
        record = job.record
        if record.by != order.by or record.phase is None:
            raise Refused(reasons.RESTART_IN_PROGRESS, "another restarter took it over")
        if record.phase != CLAIMED:  # ordered, and the answer was lost
            return
        if self.clock.steady() >= until_s:
            raise Refused(reasons.CHECKPOINT_EXPIRED, f"{until_s - since_s:g} s")
        self._recheck_after(order, since_s)
        if job.finished or job.deleting:
            raise Refused(reasons.JOB_DELETING if job.deleting else reasons.JOB_FINISHED)
        self.backend.check(job)
        try:
            self.backend.stop(job, record)
        except (Denied, Invalid) as error:
            raise error.refusal() from None

    def _release(self, order: Order, job: Job, defragmented_s: float | None = None) -> Generator[float, None, None]:
        """Remove our claim. If the backend stays away, the next search for unfinished restarts removes it."""
        until_s = self.clock.steady() + self.config.policy.max_wait
        try:
            yield from retry_until(
                lambda: self._unclaim(order, job, CLAIMED, WAITING, at_s=defragmented_s), self.clock, until_s
            )
        except NotFound:
            return
        except BackendError as error:
            event(log, logging.WARNING, "cannot remove the restarter's claim from a job", job=job.name, reason=error)

    def _unclaim(self, order: Order, job: Job, *phases: str, at_s: float | None = None) -> None:
        """The attempt stays in the record, so the next one waits for the cooldown. `at_s`: it was defragmented then."""
        job = self.backend.read(job)
        if job.record.by == order.by and job.record.phase in phases:
            record = job.record.closed() if at_s is None else replace(job.record.closed(), defragmented_s=at_s)
            self.backend.remember(job, record.annotations())


def describe(alert: Alert) -> str:
    """Return what the alert reports, in a sentence or two."""
    text = " ".join((alert.annotations.get("description") or alert.annotations.get("summary") or "").split())
    return f"{alert.name or 'an alert'} fires. {text[:400]}".rstrip()
