"""Ranks without processes: they step when a test lets them, and each command reaches them one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gpufrag.checkpoint.promise import Promise
from gpufrag.checkpoint.protocol import CONFIRMED, PROMISED, SAVED, Answers, RankCommand, RankState, Saved, Terms, agree
from gpufrag.errors import GpufragError

TERMS = Terms("one", timeout=60.0, patience=10.0, hold=20.0)


@dataclass
class SimulatedRank:
    """`breaks`: its callback raises. `ahead`: steps that it makes whenever a promise is asked of it, just before."""

    rank: int
    size: int
    step: int | None = 10
    step_seconds: float | None = 0.5
    callback: bool = True
    alive: bool = True
    breaks: bool = False
    ahead: int = 0
    promise: Promise = field(default_factory=Promise)
    saved_at: list[int] = field(default_factory=list)
    waits_until: float | None = None

    def tick(self, now: float) -> None:
        """One step, unless it stands still at one."""
        if self.waits_until is None and self.alive and self.step is not None:
            self.step += 1
            if self.promise.is_due(self.step, now):
                self.waits_until = now + self.promise.patience
        self.look(now)

    def look(self, now: float) -> None:
        """What the waiting trainer does when something has changed, or its time is up."""
        if self.waits_until is None or not self.alive:
            return
        if self.promise.state == PROMISED and now >= self.waits_until:
            self.promise.expired()
        if self.promise.state == CONFIRMED:
            self._save(now)
        released = self.promise.leave is not None or now >= self.waits_until
        if self.promise.state == SAVED and released:
            self.promise.left()
        if self.promise.state not in (PROMISED, CONFIRMED, SAVED):
            self.waits_until = None

    def _save(self, now: float) -> None:
        assert self.step is not None
        if self.breaks:
            self.promise.failed("the callback raised", now)
        else:
            self.saved_at.append(self.step)
            self.promise.saved(f"checkpoint-{self.step}")
            self.waits_until = now + self.promise.hold

    def hear(self, ask: RankCommand, now: float) -> RankState | str:
        fields = ask.fields
        try:
            self._obey(ask.name, fields["id"], fields, now)
        except GpufragError as error:
            return f"rank {self.rank}: {error}"
        if self.promise.state == SAVED:
            self.waits_until = now + self.promise.hold
        self.look(now)
        return self.state()

    def _obey(self, command: str, checkpoint: str, fields, now: float) -> None:
        if command == "prepare":
            self.promise.prepare(checkpoint, now)
        elif command == "at":
            for _ in range(self.ahead):
                self.tick(now)
            self.promise.at(checkpoint, fields["step"], self.step or 0, now, fields["patience"], fields["hold"])
        elif command == "confirm":
            self.promise.confirm(checkpoint, now)
        elif command == "cancel":
            self.promise.cancel(checkpoint)
        elif command == "release":
            self.promise.release(checkpoint, fields["exit"])

    def state(self) -> RankState:
        p = self.promise
        place = ("host", 100 + self.rank, self.rank, self.size)
        return RankState(*place, p.id, p.state, self.callback, self.step, self.step_seconds, p.target, p.path, p.error)


@dataclass
class Job:
    """`meanwhile` is called before each delivery: it may let ranks step, kill one, or lose the message (True)."""

    ranks: list[SimulatedRank]
    meanwhile: Callable[[RankCommand, SimulatedRank], bool | None] = lambda ask, rank: None
    now: float = 1000.0
    asked: list[str] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def ask(self, ask: RankCommand) -> Answers:
        self.asked.append(ask.name)
        answers = [answer for rank in self.ranks for answer in self._deliver(ask, rank)]
        states = tuple(answer for answer in answers if isinstance(answer, RankState))
        return Answers(states, tuple(answer for answer in answers if isinstance(answer, str)))

    def _deliver(self, ask: RankCommand, rank: SimulatedRank) -> Iterator[RankState | str]:
        lost = self.meanwhile(ask, rank)
        if rank.alive:
            yield f"rank {rank.rank}: no answer" if lost else rank.hear(ask, self.now)

    def run(self, terms: Terms = TERMS, most: int = 1000) -> Saved | None:
        """Run to the end, or until the coordinator dies after `most` commands. Every rank steps after each command."""
        agreement = agree(terms, self.clock)
        try:
            wanted = next(agreement)
            for _ in range(most):
                self.now += wanted.delay_s
                heard = self.ask(wanted)
                self.step()
                wanted = agreement.send(heard)
        except StopIteration as end:
            result: Saved | None = end.value
            return result
        return None

    def step(self) -> None:
        for rank in self.ranks:
            rank.tick(self.now)


def job(size: int, **changes: object) -> Job:
    return Job([SimulatedRank(rank, size, **changes) for rank in range(size)])  # type: ignore[arg-type]
