"""One restart, from a decision to its end: check, claim, checkpoint, first order; then `finish`.

Up to the first order nothing has happened to the job, and whatever stands in the way ends the attempt. After it the
attempt does not end before the job goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from itertools import islice

from . import decisions, reasons
from .alerts import Alert
from .checkpoint import Checkpoint, Checkpointer, CheckpointFailed
from .circuit import STORE_ERRORS
from .clock import delays
from .cluster import Owner
from .decisions import about
from .errors import ClusterError, Conflict, Denied, Invalid, NotFound, Refused
from .finish import Finisher, Result, phase_after
from .memory import CLAIMED, WAITING, Memory
from .metrics import CHECKPOINT, Metrics
from .owners import Resolved, resolve
from .policy import Restart
from .reasons import Skip
from .settings import CheckpointSettings
from .steps import AwaitStopped, Step

CLAIM_TRIES = 6
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

    def restart(self, order: Order) -> Attempt:
        """Yields the seconds after which it wants to go on; returns how it ended, or why it was not begun."""
        try:
            self._check(order)
            job = yield from self._claim(order)
            yield from self._begin(order, job)
        except NotBegun as end:
            return end.skip
        return (yield from self.finisher.finish(job.owner.ref))

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

    def _begin(self, order: Order, job: Resolved) -> Generator[float, None, None]:
        try:
            yield from self._count(order, job)
            saved = yield from self._save(job)
            lost = self.finisher.targets[job.owner.group_kind].lost
            text = f"Restarting {job.owner.ref}: {why(order.alert)} {saved.text} What it costs: {lost}."
            now = self.finisher.clock.now()
            order.tell(about(now, decisions.STARTED, "started", text, order.alert, job.owner.ref), job)
            yield from self.finisher.patiently(lambda: self._first_step(order, job))
        except NotBegun:
            yield from self._release(order, job)
            raise
        except NotFound as error:
            raise NotBegun(reasons.failed(error)) from None

    def _count(self, order: Order, job: Resolved) -> Generator[float, None, None]:
        try:
            yield from self.finisher.patiently(lambda: order.claimed(job))
        except STORE_ERRORS as error:
            raise NotBegun(Skip(reasons.NO_MEMORY, str(error))) from None

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

    def _first_step(self, order: Order, job: Resolved) -> None:
        """Run again until it is known to have been taken; raises NotBegun where that can never be."""
        owner = self.finisher.cluster.get_owner(job.owner.ref)
        memory = Memory.read(owner.annotations)
        if memory.by != order.by or memory.phase is None:
            raise NotBegun(Skip(reasons.UNDER_WAY, "another receiver took it over"))
        if memory.phase != CLAIMED:  # done, but the answer was lost
            return
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
        """Take our claim away again; that there was an attempt stays in memory, so that the next one is not at once."""

        def release() -> None:
            owner = self.finisher.cluster.get_owner(job.owner.ref)
            memory = Memory.read(owner.annotations)
            if memory.by == order.by and memory.phase in (CLAIMED, WAITING):
                self.finisher.close(owner)

        try:
            yield from self.finisher.patiently(release)
        except NotFound:
            return

    def _plan(self, owner: Owner, job: Resolved) -> tuple[Step, ...]:
        try:
            return self.finisher.targets[owner.group_kind].plan(owner, job.pod)
        except Refused as refusal:
            raise NotBegun(reasons.refused(refusal)) from None


def why(alert: Alert) -> str:
    """What the rule says, in a sentence or two."""
    text = " ".join((alert.annotations.get("description") or alert.annotations.get("summary") or "").split())
    return f"{alert.name or 'an alert'} fires. {text[:400]}".rstrip()
