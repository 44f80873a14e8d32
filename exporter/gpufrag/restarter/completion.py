"""The rest of a restart, from the order to stop on: wait until the job has stopped, start it, wait until it runs.

It ends when the job runs again or a time limit expires. All its state is in the job's record, so another process can
complete a restart.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

from . import decisions
from .backend import BackendError, Conflict, Denied, Invalid, Job, JobBackend, NotFound, Stage, State
from .clock import Clock
from .decisions import DecisionLog, Result
from .record import SUSPENDED, RestartRecord
from .retry import retry_until
from .settings import RestartSettings

FIRST_POLL_S, MAX_POLL_S = 0.25, 5.0
"""Between two looks at a job: doubled after each, from its last order on."""
GIVE_UP_S = 300.0
"""Failures for this long end a restart; the next search for unfinished restarts takes it over."""
VISIBLE_S = 30.0
"""The effect of an accepted order becomes visible within this time; until then it is not repeated."""
SETTLE_S = 20.0
"""A job without pods counts as stopped after this time even if its controller does not report it."""
REPORT_WAIT_S = 30.0
"""A wait for resources is reported after this time."""
NO_EFFECT_AFTER_S = 5.0
"""An order that can no longer be repeated counts as without effect if the job still runs after this time."""

SUCCESS = Result(decisions.RESTARTED, "restarted", "The job was restarted, and all its processes run.")
DELETED = Result(decisions.ENDED, "deleted", "The job was deleted during its restart.")
FINISHED = Result(decisions.ENDED, "finished", "The job finished during its restart.")
NOT_STOPPED = Result(
    decisions.FAILED,
    "not-stopped",
    "The job did not stop within restart.stop_timeout and was started anyway. Look for processes that have not exited.",
)
NOT_RUNNING = Result(
    decisions.FAILED,
    "not-running",
    "The restarted job was not fully running within restart.run_timeout{waits}. It is not restarted again.",
)
WAITS = Result(
    decisions.ENDED,
    "waiting-for-resources",
    "The job was restarted and waits for resources{waits}. The restarter stops watching it.",
)
BY_ANOTHER = Result(decisions.ENDED, "by-another", "Another restarter completed this restart and reports it.")
NO_EFFECT = Result(
    decisions.ENDED,
    "no-effect",
    "The restart had no effect, and the job keeps running. The restarter does not try again, because the checkpoint is "
    "too old by now.",
)
NOT_PERMITTED = "not-permitted"
GIVEN_UP = "given-up"


@dataclass
class _Progress:
    """What this process has seen of one restart; times are by the steady clock."""

    since_s: float
    """When the present part, stopping or starting, began."""
    resend_until_s: float
    """Until then the order may be sent again to a job that runs: its checkpoint is fresh."""
    ordered_s: float
    """When an order was last sent, or this process took over."""
    poll_s: float = FIRST_POLL_S
    result: Result = SUCCESS
    """The result if the job runs from now on."""
    idle_since_s: float | None = None
    """Since when nothing of the job runs, without its controller reporting it."""
    closing: bool = False
    """We tried to remove the phase, and it may have been removed."""


@dataclass(frozen=True)
class Completion:
    """Completes restarts that were ordered, by this process or another."""

    backend: JobBackend
    settings: RestartSettings
    clock: Clock
    decisions: DecisionLog

    def finish(self, job: Job, resend_until_s: float = -math.inf) -> Generator[float, None, Result]:
        """Complete a restart that was ordered, by this process or another. Returns how it ended.

        `resend_until_s`, by the steady clock: until then an order may be repeated for a job that runs. A restart that
        another process began has no such time, because the age of its checkpoint is unknown.
        """
        now_s = self.clock.steady()
        progress = _Progress(now_s, resend_until_s, now_s)

        def report(error: BackendError) -> None:
            text = f"The restart cannot continue, and the job may be stopped: {error}."
            self.decisions.waiting(job, error.reason.label, text)

        while True:
            try:
                until_s = self.clock.steady() + GIVE_UP_S
                result = yield from retry_until(lambda: self._look(job, progress), self.clock, until_s, report)
            except NotFound:
                return DELETED
            except BackendError as error:
                text = f"Requests failed for {GIVE_UP_S / 60:.0f} min ({error}). The job may be stopped. "
                return Result(decisions.FAILED, GIVEN_UP, text + "The restarter continues when it has access again.")
            if result is not None:
                return result
            yield progress.poll_s
            progress.poll_s = min(2 * progress.poll_s, MAX_POLL_S)

    def close(self, job: Job) -> None:
        """Record that no restart is in progress."""
        self.backend.remember(job, job.record.closed().annotations())

    def _look(self, job: Job, progress: _Progress) -> Result | None:
        """Read the job and do at most one step; None: the restart is not over."""
        job = self.backend.read(job)
        record = job.record
        if record.phase is None:  # removed by a call whose answer was lost, or by another restarter
            return progress.result if progress.closing else BY_ANOTHER
        if job.finished or job.deleting:
            return self._close(job, progress, DELETED if job.deleting else FINISHED)
        state = self.backend.state(job)
        now_s = self.clock.steady()
        match state.stage:
            case Stage.RUNNING:
                return self._close(job, progress, progress.result)
            case Stage.ORDERED:
                return self._repeat_order(job, record, state, progress)
            case Stage.STOPPING | Stage.STOPPED if record.phase == SUSPENDED:
                if self._may_start(state, progress, now_s):
                    self.backend.start(job, record)
                    progress.since_s, progress.poll_s = now_s, FIRST_POLL_S
                return None
        # Once the job was started, a suspension is another client's.
        return self._judge_wait(job, state, progress, now_s)

    def _repeat_order(self, job: Job, record: RestartRecord, state: State, progress: _Progress) -> Result | None:
        now_s = self.clock.steady()
        if not state.confirmed and now_s - progress.ordered_s < VISIBLE_S:
            return None
        if state.runs and now_s >= progress.resend_until_s:
            return self._close(job, progress, NO_EFFECT) if now_s - progress.since_s >= NO_EFFECT_AFTER_S else None
        try:
            self.backend.stop(job, record)
        except (Denied, Invalid) as error:
            return self._close(self.backend.read(job), progress, Result(decisions.FAILED, NOT_PERMITTED, str(error)))
        progress.since_s = progress.ordered_s = now_s
        return None

    def _may_start(self, state: State, progress: _Progress, now_s: float) -> bool:
        """Started before its last pod has ended, a job could have two pods of one rank."""
        if state.stage is Stage.STOPPED:
            progress.idle_since_s = now_s if progress.idle_since_s is None else progress.idle_since_s
            if state.confirmed or now_s - progress.idle_since_s >= SETTLE_S:
                return True
        else:
            progress.idle_since_s = None
        if now_s - progress.since_s < self.settings.stop_timeout:
            return False
        progress.result = NOT_STOPPED
        return True

    def _judge_wait(self, job: Job, state: State, progress: _Progress, now_s: float) -> Result | None:
        waited_s = now_s - progress.since_s
        if state.needs_resources and waited_s >= REPORT_WAIT_S:
            self.decisions.waiting(job, WAITS.label, f"The restarted job waits for resources: {state.waits_for}.")
        if waited_s < self.settings.run_timeout:
            return None
        waits = f" ({state.waits_for})" if state.waits_for else ""
        if progress.result is NOT_STOPPED:
            return self._close(job, progress, NOT_STOPPED)
        result = WAITS if state.needs_resources else NOT_RUNNING
        return self._close(job, progress, result._replace(text=result.text.format(waits=waits)))

    def _close(self, job: Job, progress: _Progress, result: Result) -> Result:
        progress.result, before = result, progress.closing
        progress.closing = True
        try:
            self.close(job)
        except Conflict:  # this call did nothing; an earlier one may have
            progress.closing = before
            raise
        return result
