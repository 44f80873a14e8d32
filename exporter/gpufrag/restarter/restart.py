"""One restart, from a decision to its end: check, claim, checkpoint, first order; then `finish`.

Up to the first order nothing has happened to the job, and whatever stands in the way ends the attempt. After it the
attempt does not end before the job goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from ..checkpoint.protocol import CheckpointFailed
from ..logs import event
from . import decisions, reasons
from .alerts import Alert
from .checkpoint import Checkpoint, Checkpointer
from .circuit import STORE_ERRORS
from .clock import delays
from .decisions import about
from .errors import ClusterError, Conflict, Denied, Invalid, NotFound, Refused
from .finish import Finisher, Result, phase_after
from .kubernetes.cluster import Owner
from .kubernetes.owners import Resolved, resolve
from .kubernetes.steps import AwaitStopped, Step
from .metrics import CHECKPOINT, Metrics
from .policy import Restart
from .reasons import Skip
from .record import CLAIMED, WAITING, Memory
from .settings import CheckpointSettings

CLAIM_TRIES = 6
log = logging.getLogger(__name__)
Told = Callable[[decisions.Decision, Resolved], None]
Attempt = Generator[float, None, "Result | Skip"]


class NotBegun(Exception):
    """Why an attempt ends before anything has happened to the job."""

    def __init__(self, skip: Skip) -> None:
        super().__init__(skip.text)
        self.skip = skip


@dataclass(frozen=True)
class Order:
    """What is to be restarted, because of what."""

    alert: Alert
    job: Resolved
    by: str
    """Names this attempt among all of all receivers."""
    decide: Callable[[Resolved], Restart | Skip]
    """Asked again with the job as it is then."""
    check: Callable[[Alert], Skip | None]
    """Whether the alert is still true."""
    claimed: Callable[[Resolved], None]
    """Told when the job is ours; raises STORE_ERRORS. May be told again."""
    tell: Told


@dataclass(frozen=True)
class Restarter:
    """Carries out orders."""

    finisher: Finisher
    checkpointer: Checkpointer
    checkpoint: CheckpointSettings
    metrics: Metrics
    max_wait_s: float
    """What stands in the way of a restart that has not begun is waited for so long: policy.max_wait."""

    def restart(self, order: Order) -> Attempt:
        """Yields the seconds after which it wants to go on; returns how it ended, or why it was not begun."""
        try:
            self._check(order)
            job = yield from self._claim(order)
            until_s = yield from self._begin(order, job)
        except NotBegun as end:
            return end.skip
        return (yield from self.finisher.finish(job.owner.ref, until_s))

    def rehearse(self, order: Order) -> Result:
        """The same as a dry run: the server judges every step and stores nothing. Raises NotBegun."""
        self._check(order)
        owner, cluster = order.job.owner, self.finisher.cluster
        try:
            for step in self._plan(owner, order.job):
                if not isinstance(step, AwaitStopped):
                    step.run(cluster, owner, Memory.read(owner.annotations).annotations(), dry_run=True)
        except ClusterError as error:
            raise NotBegun(reasons.failed(error)) from error
        return Result(decisions.WOULD, "dry-run", f"Would restart {owner.ref}: {why(order.alert)}")

    def _check(self, order: Order) -> None:
        if skip := order.check(order.alert):
            raise NotBegun(skip)

    def _check_again(self, order: Order, since_s: float) -> None:
        """After a wait, in which the alert may have ended."""
        if self.finisher.clock.steady() - since_s >= self.finisher.settings.retry:
            self._check(order)

    def _claim(self, order: Order) -> Generator[float, None, Resolved]:
        """Write on the owner that a restart of it is under way: of all who try, one succeeds."""
        error: ClusterError = Conflict("nobody tried")
        for delay in islice(delays(min(1.0, self.finisher.settings.retry)), CLAIM_TRIES):
            try:
                return self._try_to_claim(order)
            except Refused as refusal:
                raise NotBegun(reasons.refused(refusal)) from None
            except (NotFound, Denied, Invalid) as refusal:
                raise NotBegun(reasons.failed(refusal)) from None
            except ClusterError as failure:
                error = failure
            yield delay
        raise NotBegun(reasons.failed(error))

    def _try_to_claim(self, order: Order) -> Resolved:
        pod, cluster = order.job.pod, self.finisher.cluster
        job = resolve(cluster, pod.namespace, pod.name, pod.uid, self.finisher.targets)
        memory = Memory.read(job.owner.annotations)
        if memory.by == order.by:  # done, but the answer was lost
            return job
        decision = order.decide(job)
        if isinstance(decision, Skip):
            raise NotBegun(decision)
        self._plan(job.owner, job)
        now = self.finisher.clock.now()
        begun = memory.begun(now, order.by, order.alert.fingerprint, decision.useless)
        body = {"metadata": {"annotations": replace(begun, phase=CLAIMED).annotations()}}
        return replace(job, owner=cluster.patch(job.owner.ref, body, job.owner.resource_version))

    def _begin(self, order: Order, job: Resolved) -> Generator[float, None, float]:
        """Returns until when, by the steady clock, the order to stop may be given again."""
        saved = Checkpoint("")
        try:
            yield from self._count(order, job)
            saved = yield from self._save(job)
            return (yield from self._stop(order, job, saved))
        except NotBegun:
            saved.let_go()
            yield from self._release(order, job)
            raise
        except NotFound as error:
            raise NotBegun(reasons.failed(error)) from None
        except GeneratorExit:  # the receiver ends
            saved.let_go()
            with suppress(ClusterError):
                self._give_back(order, job, CLAIMED)
            raise

    def _count(self, order: Order, job: Resolved) -> Generator[float, None, None]:
        began_s = self.finisher.clock.steady()
        try:
            yield from self.finisher.patiently(lambda: order.claimed(job), began_s + self.max_wait_s)
        except STORE_ERRORS as error:
            raise NotBegun(Skip(reasons.NO_MEMORY, str(error))) from None
        self._check_again(order, began_s)

    def _stop(self, order: Order, job: Resolved, saved: Checkpoint) -> Generator[float, None, float]:
        now_s = self.finisher.clock.steady()
        until_s = now_s + (self.checkpoint.hold if saved.saved else self.max_wait_s)
        lost = self.finisher.targets[job.owner.group_kind].lost
        text = f"Restarting {job.owner.ref}: {why(order.alert)} {saved.text} What it costs: {lost}."
        order.tell(
            about(self.finisher.clock.now(), decisions.STARTED, "started", text, order.alert, job.owner.ref), job
        )
        call = partial(self._first_step, order, job, now_s, until_s)
        try:
            yield from self.finisher.patiently(call, until_s + self.max_wait_s)
        except NotFound:
            raise
        except ClusterError as error:
            raise NotBegun(Skip(reasons.LATE, str(error))) from None
        return until_s

    def _save(self, job: Resolved) -> Generator[float, None, Checkpoint]:
        began = self.finisher.clock.steady()
        try:
            return (yield from self.checkpointer.save(job, self.checkpoint.timeout))
        except CheckpointFailed as error:
            if self.checkpoint.on_timeout == "abort":
                raise NotBegun(Skip(reasons.CHECKPOINT, str(error))) from None
            return Checkpoint(f"No checkpoint ({error}): work since the last one is lost.")
        finally:
            self.metrics.observe(CHECKPOINT, self.finisher.clock.steady() - began)

    def _first_step(self, order: Order, job: Resolved, since_s: float, until_s: float) -> None:
        """Run again until it is known to have been taken; raises NotBegun where that can never be, or is too late."""
        owner = self.finisher.cluster.get_owner(job.owner.ref)
        memory = Memory.read(owner.annotations)
        if memory.by != order.by or memory.phase is None:
            raise NotBegun(Skip(reasons.UNDER_WAY, "another receiver took it over"))
        if memory.phase != CLAIMED:  # done, but the answer was lost
            return
        if self.finisher.clock.steady() >= until_s:
            raise NotBegun(Skip(reasons.LATE, f"{until_s - since_s:g} s"))
        self._check_again(order, since_s)
        if owner.finished or owner.deleting:
            raise NotBegun(Skip(reasons.DELETING if owner.deleting else reasons.FINISHED))
        steps = self._plan(owner, job)
        assert not isinstance(steps[0], AwaitStopped)
        try:
            marked = replace(memory, phase=phase_after(steps)).annotations()
            steps[0].run(self.finisher.cluster, owner, marked)
        except (Denied, Invalid) as error:
            raise NotBegun(reasons.failed(error)) from None

    def _release(self, order: Order, job: Resolved) -> Generator[float, None, None]:
        """As `_give_back`. Where the cluster stays away, the next search for what was left half way does it."""
        until_s = self.finisher.clock.steady() + self.max_wait_s
        try:
            yield from self.finisher.patiently(lambda: self._give_back(order, job, CLAIMED, WAITING), until_s)
        except NotFound:
            return
        except ClusterError as error:
            event(log, logging.WARNING, "a claim could not be given back", job=job.owner.ref, reason=error)

    def _give_back(self, order: Order, job: Resolved, *phases: str) -> None:
        """Take our claim away again; that there was an attempt stays in memory, so that the next one is not at once."""
        owner = self.finisher.cluster.get_owner(job.owner.ref)
        memory = Memory.read(owner.annotations)
        if memory.by == order.by and memory.phase in phases:
            self.finisher.close(owner)

    def _plan(self, owner: Owner, job: Resolved) -> tuple[Step, ...]:
        try:
            return self.finisher.targets[owner.group_kind].plan(owner, job.pod)
        except Refused as refusal:
            raise NotBegun(reasons.refused(refusal)) from None


def why(alert: Alert) -> str:
    """What the rule says, in a sentence or two."""
    text = " ".join((alert.annotations.get("description") or alert.annotations.get("summary") or "").split())
    return f"{alert.name or 'an alert'} fires. {text[:400]}".rstrip()
