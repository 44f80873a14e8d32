"""Has the heap copied at the memory peak of a step: begins at a boundary, follows the step, learns from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from .clocks import Clocks
from .following import LONG_READING, Following, Plan
from .peak import TIMER, Experience, Level
from .settings import AgentSettings
from .sources import TellsLevel

SHARE = 0.2
"""Of what a window may cost: for following one step. The rest is for the copy, its measuring, and what is learned."""
STUDIES = 3
"""Steps that are studied before the first copy; later one before each."""
TRIES = 3
"""Steps in which a copy is tried. Without success the snapshot is left to chance."""
RECENT = 31
"""Readings by whose median the next ones are planned: the first one of a step is the slowest by far."""
NAP = 0.002
"""Seconds. Longer pauses than this can be ended by whoever wants something of the agent's thread."""


class Step(NamedTuple):
    device: int
    following: Following


class Peaks:
    """`boundary` and `begin` are called in the program's thread after a step, all else in the agent's.

    `copy` copies the heap at once. `spent` is told of every cost, by cause (stats, wait, measure), in seconds.
    """

    def __init__(
        self,
        source: TellsLevel,
        settings: AgentSettings,
        clocks: Clocks,
        copy: Callable[[], None],
        spent: Callable[[str, float], None],
    ) -> None:
        self._source, self._clocks, self._copy, self._spent = source, clocks, copy, spent
        self._allowance = SHARE * settings.interval * settings.budget
        self._experience: dict[int, Experience] = {}
        self._step: Step | None = None
        self._ended: deque[Step] = deque()
        self._boundary_at: float | None = None
        self.step_seconds = 0.0
        """What the last step took; 0 before the second boundary."""
        self._followed = 0
        self._costs: deque[float] = deque(maxlen=RECENT)
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
            self.step_seconds = now - self._boundary_at
        self._boundary_at = now
        step, self._step = self._step, None
        if step is not None:
            step.following.ended = True
            self._ended.append(step)

    def begin(self, device: int) -> bool:
        """Follow the step that begins now. False where that leads to nothing: then chance is better."""
        experience = self._experience.setdefault(device, Experience())
        study = self._followed < (1 if experience.known >= STUDIES else STUDIES)
        level, _ = self._read(device)
        hopeless = self._followed >= STUDIES + TRIES or (experience.rule is None and not study)
        if hopeless or level is None or self.step_seconds == 0.0:
            self._followed, self.method = 0, TIMER
            return False
        self._followed += 1
        plan = Plan(self.step_seconds, self._allowance, median(self._costs))
        self._step = Step(device, Following(experience, level, self._clocks.monotonic(), plan, study=study))
        return True

    def follow(self, interrupted: Callable[[], bool], rest: Callable[[float], object]) -> None:
        """Until the step is over, or `interrupted`: then it may be called again. `rest` is a sleep that may be cut."""
        try:
            self._learn()
            self._look(interrupted, rest)
        except Exception:
            self._step = None  # what cannot be read now is not asked at once again
            raise

    def _look(self, interrupted: Callable[[], bool], rest: Callable[[float], object]) -> None:
        while (step := self._step) is not None and not interrupted():
            level, took = self._read(step.device)
            if level is not None and step.following.see(level, self._clocks.monotonic(), took):
                self._copy()
                self._followed, self.method = 0, step.following.method
            if level is None or step.following.over(self._clocks.monotonic()):
                self._leave(step)
            elif pause := step.following.pause():
                (rest if pause > NAP else self._clocks.sleep)(pause)

    def _leave(self, step: Step) -> None:
        if self._step is step:  # else the program has come to a boundary just now
            self._step = None
        self._learn()

    def _learn(self) -> None:
        """From the steps that have ended; what that costs is told once, whether anything was learned or not."""
        if not self._ended:
            return
        began = self._clocks.cpu()
        while self._ended:
            device, following = self._ended.popleft()
            if (curve := following.curve()) is not None:
                self._experience[device].learn(curve)
        self._spent("measure", self._clocks.cpu() - began)

    def _read(self, device: int) -> tuple[Level | None, float]:
        began = self._clocks.monotonic()
        level = self._source.level(device)
        took = self._clocks.monotonic() - began
        self._costs.append(took)
        self._spent("wait" if took > LONG_READING else "stats", took)
        return level, took
