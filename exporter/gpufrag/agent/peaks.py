"""Has the heap copied at the memory peak of a step: begins at a boundary, follows the step, learns from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from .clocks import Clocks
from .following import Following, Plan
from .peak import TIMER, Experience, Level
from .settings import AgentSettings
from .sources import TellsLevel

SHARE = 0.3
"""Of what a window may cost: for following one step. The rest is for the copy, its measuring, and what is learned."""
TRIES = 3
"""Steps that are followed for one snapshot before it is left to chance."""
NAP = 0.002
"""Seconds. Longer pauses than this can be ended by whoever wants something of the agent's thread."""


class Step(NamedTuple):
    device: int
    following: Following


class Peaks:
    """`boundary` and `begin` are called in the program's thread after a step, all else in the agent's.

    `copy` copies the heap at once. `spent` is told what each reading cost, in seconds.
    """

    def __init__(
        self,
        source: TellsLevel,
        settings: AgentSettings,
        clocks: Clocks,
        copy: Callable[[], None],
        spent: Callable[[float], None],
    ) -> None:
        self._source, self._clocks, self._copy, self._spent = source, clocks, copy, spent
        self._allowance = SHARE * settings.interval * settings.budget
        self._experience: dict[int, Experience] = {}
        self._step: Step | None = None
        self._copied: Step | None = None
        self._finished: deque[Step] = deque()
        self._boundary_at: float | None = None
        self._length = 0.0
        self._tries = 0
        self.method = TIMER
        """How the last peak was found; TIMER where it was not, or none was looked for yet."""

    @property
    def underway(self) -> bool:
        """Whether a step is being followed."""
        return self._step is not None

    def boundary(self) -> None:
        """A step has ended. Called after each: it is cheap."""
        now = self._clocks.monotonic()
        if self._boundary_at is not None:
            self._length = now - self._boundary_at
        self._boundary_at = now
        step, self._step = self._step, None
        if step is not None:
            step.following.ended = True
            self._finished.append(step)

    def begin(self, device: int) -> bool:
        """Follow the step that begins now. False where that leads to nothing: then chance is better."""
        experience = self._experience.setdefault(device, Experience())
        hopeless = self._tries >= (TRIES if experience.rule else 1)
        level, took = self._read(device)
        if hopeless or level is None or self._length == 0.0:
            self._tries, self.method = 0, TIMER
            return False
        self._tries += 1
        plan = Plan(self._length, self._allowance, took)
        self._step = Step(device, Following(experience, level, self._clocks.monotonic(), plan))
        return True

    def follow(self, interrupted: Callable[[], bool], rest: Callable[[float], object]) -> None:
        """Until the step is over, or `interrupted`: then it may be called again. `rest` is a sleep that may be cut."""
        while (step := self._step) is not None and not interrupted():
            level, took = self._read(step.device)
            if level is not None and step.following.see(level, self._clocks.monotonic(), took):
                self._take(step)
            if level is None or step.following.over(self._clocks.monotonic()):
                self._drop(step)
            elif pause := step.following.pause():
                (rest if pause > NAP else self._clocks.sleep)(pause)

    def found(self, active: Mapping[int, int]) -> None:
        """What was active in the copy that was asked for last, by device, in bytes."""
        step, self._copied = self._copied, None
        if step is not None and step.device in active:
            step.following.found(active[step.device])

    def learn(self) -> None:
        """From the steps that have ended."""
        while self._finished:
            device, following = self._finished.popleft()
            if (curve := following.curve()) is not None:
                self._experience[device].learn(curve)

    def _take(self, step: Step) -> None:
        self.method, self._tries, self._copied = self._experience[step.device].method, 0, step
        self._copy()

    def _drop(self, step: Step) -> None:
        if self._step is step:  # else the program has come to a boundary just now
            self._step = None

    def _read(self, device: int) -> tuple[Level | None, float]:
        began = self._clocks.monotonic()
        level = self._source.level(device)
        took = self._clocks.monotonic() - began
        self._spent(took)
        return level, took
