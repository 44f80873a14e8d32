"""The second half of a restart, from the first order given to all pods ready: as it was begun here, or left by another.

It keeps no state that a crash could lose: each look reads the owner, does at most one step, and can be done again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from ..logs import event
from .clock import Clock, delays
from .decisions import FAILED, OVER, RESTARTED
from .errors import ClusterError, Conflict, Denied, Invalid, NotFound
from .kubernetes.cluster import Cluster, GroupKind, Owner, Ref
from .kubernetes.steps import COMMANDED, EVICTED, AwaitStopped, Command, Evict, Patch, Step
from .kubernetes.targets import Target
from .record import SUSPENDED, WAITING, Memory
from .settings import RestartSettings

LOGGED_TRIES = 3
"""A call that failed so often in a row is told in the log."""
T = TypeVar("T")
log = logging.getLogger(__name__)


class Result(NamedTuple):
    """How a restart ended."""

    outcome: str
    label: str
    text: str


SUCCESS = Result(RESTARTED, "restarted", "The job was restarted, and all its pods are ready.")
GONE = Result(OVER, "gone", "The job was deleted while it was restarted.")
ENDED = Result(OVER, "ended", "The job came to its end while it was restarted.")
NOT_STOPPED = Result(
    FAILED,
    "not-stopped",
    "Pods did not end in time (restart.stop_timeout), and the job was told to go on all the same: look for pods that "
    "are still terminating.",
)
NOT_RUNNING = Result(
    FAILED,
    "not-running",
    "The job was told to go on, but its pods are not ready in time (restart.run_timeout): look at them. "
    "No second try is made.",
)
BY_ANOTHER = Result(OVER, "by-another", "Another receiver has brought this restart to its end, and tells of it.")
NOT_HEARD = Result(
    OVER,
    "not-heard",
    "The order to restart is not seen to have reached the job, which runs on. It is not given again: what was saved "
    "before it is too old by now.",
)
NOT_PERMITTED = "not-permitted"


@dataclass
class _Progress:
    """What one process has seen of one restart; time is by the steady clock."""

    since_s: float
    """When the present part, stopping or going on, began."""
    again_until_s: float
    """Until then an order that may not have been heard is given again; what the ranks saved is fresh so long."""
    done: set[str] = field(default_factory=set)
    """Names of steps."""
    verdict: Result = SUCCESS
    """As it looks by now."""
    closing: bool = False
    """We have tried to take the phase away, and do not know that it was in vain."""


@dataclass(frozen=True)
class Finisher:
    """Ends restarts."""

    cluster: Cluster
    targets: Mapping[GroupKind, Target]
    settings: RestartSettings
    clock: Clock

    def finish(self, ref: Ref, again_until_s: float = -math.inf) -> Generator[float, None, Result]:
        """Yields the seconds after which it wants to go on. Returns when the owner's phase is gone, or the owner.

        `again_until_s`, by the steady clock: until then it may tell a job that runs to restart. A restart that another
        began has no such time: it saved who knows when.
        """
        progress = _Progress(self.clock.steady(), again_until_s)
        while True:
            try:
                result = yield from self.patiently(lambda: self._look(ref, progress))
            except NotFound:
                return GONE
            if result is not None:
                return result
            yield self.settings.poll

    def patiently(self, call: Callable[[], T], until_s: float = math.inf) -> Generator[float, None, T]:
        """What `call` returns, at last. It reads the owner each time anew, for a call that failed may have been done.

        Raises NotFound at once, and from `until_s` on, by the steady clock, what the call raised. Without such a time
        it is tried again for ever: a job may be suspended, and must not stay so.
        """
        for tries, delay in enumerate(delays(self.settings.retry), 1):
            try:
                return call()
            except NotFound:
                raise
            except ClusterError as error:
                left = until_s - self.clock.steady()
                if left <= 0:
                    raise
                if tries == LOGGED_TRIES:
                    event(log, logging.WARNING, "a call fails, and is tried again", tries=tries, reason=error)
                yield min(max(delay, getattr(error, "retry_after_s", None) or 0.0), left)
        raise AssertionError("delays have no end")

    def close(self, owner: Owner) -> None:
        """Take the phase away, and what was ordered with it."""
        memory = replace(Memory.read(owner.annotations), phase=None)
        Patch("close").run(self.cluster, owner, {**memory.annotations(), COMMANDED: None, EVICTED: None})

    def _look(self, ref: Ref, progress: _Progress) -> Result | None:
        """One look, at most one step; None: it is not over."""
        owner = self.cluster.get_owner(ref)
        memory = Memory.read(owner.annotations)
        if memory.phase is None:  # closed by a call of ours whose answer was lost, or by another receiver
            return progress.verdict if progress.closing else BY_ANOTHER
        if owner.finished or owner.deleting:
            return self._close(owner, progress, ENDED)
        target = self.targets[ref.group_kind]
        left = _left(target, owner, memory, progress)
        if left and isinstance(left[0], AwaitStopped):
            if not self._stopped(target, owner, progress):
                return None
            left = left[1:]
        if left and self._too_late(target, owner, left[0], progress):
            waited = self.clock.steady() - progress.since_s >= self.settings.poll
            return self._close(owner, progress, NOT_HEARD) if waited else None
        if left and (memory.phase == SUSPENDED or not self._overdue(progress)):
            return self._run(left, owner, memory, progress)
        return self._result(target, owner, progress)

    def _too_late(self, target: Target, owner: Owner, step: Step, progress: _Progress) -> bool:
        """Whether it is an order that stops what runs, and whoever runs has trained on since they saved."""
        if self.clock.steady() < progress.again_until_s or not isinstance(step, (Command, Evict)):
            return False
        return not (step.heard(self.cluster) if isinstance(step, Evict) else target.stopped(self.cluster, owner))

    def _stopped(self, target: Target, owner: Owner, progress: _Progress) -> bool:
        if target.stopped(self.cluster, owner):
            return True
        if self.clock.steady() - progress.since_s < self.settings.stop_timeout:
            return False
        progress.verdict = NOT_STOPPED
        return True

    def _run(self, left: tuple[Step, ...], owner: Owner, memory: Memory, progress: _Progress) -> Result | None:
        step = left[0]
        assert not isinstance(step, AwaitStopped)
        try:
            step.run(self.cluster, owner, replace(memory, phase=phase_after(left)).annotations())
        except (Denied, Invalid) as error:
            if memory.phase == SUSPENDED:
                raise  # to be tried again: the job must not stay so
            return self._close(self.cluster.get_owner(owner.ref), progress, Result(FAILED, NOT_PERMITTED, str(error)))
        progress.done.add(step.name)
        progress.since_s = self.clock.steady()
        return None

    def _result(self, target: Target, owner: Owner, progress: _Progress) -> Result | None:
        if target.running(self.cluster, owner):
            return self._close(owner, progress, progress.verdict)
        return self._close(owner, progress, NOT_RUNNING) if self._overdue(progress) else None

    def _overdue(self, progress: _Progress) -> bool:
        return self.clock.steady() - progress.since_s >= self.settings.run_timeout

    def _close(self, owner: Owner, progress: _Progress, verdict: Result) -> Result:
        progress.verdict, before = verdict, progress.closing
        progress.closing = True
        try:
            self.close(owner)
        except Conflict:  # this call did nothing; one before it may have
            progress.closing = before
            raise
        return verdict


def phase_after(steps: tuple[Step, ...]) -> str:
    """The phase that the first of the steps leaves behind, which are all that is left."""
    return SUSPENDED if any(isinstance(step, AwaitStopped) for step in steps[1:]) else WAITING


def _left(target: Target, owner: Owner, memory: Memory, progress: _Progress) -> tuple[Step, ...]:
    """Once a job was told to go on, a suspension is somebody else's, and not ours to end."""
    left = target.rest(owner)
    if memory.phase != SUSPENDED:
        left = tuple(step for step in left if isinstance(step, (Command, Evict)))
    return tuple(step for step in left if step.name not in progress.done)
