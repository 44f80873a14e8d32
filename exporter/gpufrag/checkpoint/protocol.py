"""How the ranks of a job agree on one step at which all of them act: save a checkpoint, or defragment. Pure.

    coordinator                      each rank (participant.py)
    prepare    ───────────────────►  idle ─► prepared
    at step N  ───────────────────►  prepared ─► promised, if step N is still ahead
    confirm    ───────────────────►  promised ─► confirmed; at the end of step N: ─► saved, or failed
    status     ───────────────────►  (only answers)
    release    ───────────────────►  saved ─► idle, or the process ends
    cancel     ───────────────────►  prepared or promised ─► idle

A rank promises a step only if it can keep the promise, so either all ranks save at one step or none does. If the
coordinator dies, unconfirmed promises lapse and the ranks continue to train.

A defragmentation needs no other rank: a rank continues at once when it is done (`saved`), and until it begins, it can
be cancelled, and a checkpoint takes its place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, NamedTuple

from ..errors import GpufragError, one_line
from ..wire import codec
from ..wire.defragmentation import DefragmentOptions, Result
from ..wire.sample import DEVICES

IDLE, PREPARED, PROMISED, CONFIRMED, SAVED, FAILED = "idle", "prepared", "promised", "confirmed", "saved", "failed"
"""The states of a rank."""
COMMANDS = ("prepare", "at", "confirm", "status", "release", "cancel")
SHORTEST_STEP_S = 1e-6
"""A rank that reports shorter ones is wrong."""
MAX_TRIES = 5
POLL_S, FIRST_POLL_S = 0.25, 0.02
MAX_NAMED = 3
"""Ranks that a message names."""
MAX_PATH = 400
"""Characters of a path that a message shows; the program chooses the path."""


class AgreementFailed(GpufragError):
    """Not all ranks acted; the text names the ranks and the reason."""


class CheckpointFailed(AgreementFailed):
    """Not all ranks saved."""


class DefragmentationFailed(AgreementFailed):
    """Not all ranks defragmented."""


class Action(NamedTuple):
    """What the ranks do at the step; the words are for messages."""

    prefix: str
    """Precedes a command's name on a rank's control socket."""
    verb: str
    participle: str
    failure: type[AgreementFailed]


CHECKPOINT = Action("checkpoint-", "save", "saved", CheckpointFailed)
DEFRAGMENT = Action("defragment-", "defragment", "defragmented", DefragmentationFailed)
ACTIONS = (CHECKPOINT, DEFRAGMENT)


@dataclass(frozen=True)
class RankState:
    """A rank's answer to every command: which rank it is, and the state of its checkpoint or defragmentation `id`."""

    host: str
    pid: int
    rank: int | None = None
    world_size: int | None = None
    id: str | None = None
    """None: neither is in progress."""
    state: str = IDLE
    callback: bool = False
    """Whether the program has called gpufrag.on_checkpoint."""
    step: int | None = None
    """The last step that ended; None before the first."""
    step_seconds: float | None = None
    target: int | None = None
    """The promised step."""
    path: str | None = None
    error: str | None = None
    results: Annotated[tuple[Result, ...], codec.Most(DEVICES)] = ()
    """Of a defragmentation, by device."""

    @classmethod
    def from_json(cls, raw: Any) -> RankState:
        """Raises codec.Misfit."""
        return codec.read(cls, raw)

    @property
    def key(self) -> tuple[str, int]:
        return self.host, self.pid

    def __str__(self) -> str:
        return f"pid {self.pid} of {self.host}" if self.rank is None else f"rank {self.rank}"


@dataclass(frozen=True)
class Answers:
    """The answers to one command."""

    ranks: tuple[RankState, ...] = ()
    silent: tuple[str, ...] = ()
    """One sentence for each rank, or sidecar, that should have answered and did not."""

    @classmethod
    def from_json(cls, raw: Any) -> Answers:
        """The reverse of `as_json`. Raises codec.Misfit."""
        return codec.read(cls, raw)

    def as_json(self) -> dict[str, Any]:
        return {"ranks": [asdict(one) for one in self.ranks], "silent": list(self.silent)}


@dataclass(frozen=True)
class RankCommand:
    """A command for every rank, to be sent after `delay_s` seconds."""

    name: str
    fields: Mapping[str, Any]
    delay_s: float = 0.0
    action: Action = CHECKPOINT

    @property
    def path(self) -> str:
        """On the HTTP server of a sidecar, which sends the command to its ranks."""
        return f"/v1/{self.action.prefix.removesuffix('-')}/{self.name}"


@dataclass(frozen=True)
class Terms:
    """One checkpoint, or one defragmentation. All times are in seconds."""

    id: str
    timeout: float
    """Until all ranks have saved."""
    patience: float = 30.0
    """A rank waits this long at its step for `confirm`, then continues to train."""
    hold: float = 60.0
    """A rank that has saved waits this long for `release` after the last command, then continues to train."""
    lead: float = 1.0
    """The first try is for a step this far ahead; each further try looks four times as far."""
    action: Action = CHECKPOINT
    options: DefragmentOptions | None = None
    alone: bool = False
    """Only one process takes part, whatever the size of its job."""


@dataclass(frozen=True)
class Saved:
    """All ranks have acted at `step`; after a checkpoint they wait for `release`. `path` is that of the lowest rank."""

    step: int
    path: str | None
    ranks: int
    states: tuple[RankState, ...] = field(default=(), compare=False, repr=False)
    """In the order of the ranks."""

    def __str__(self) -> str:
        ranks = "The only rank" if self.ranks == 1 else f"All {self.ranks} ranks"
        where = f" to {one_line(self.path)[:MAX_PATH]}" if self.path else ""
        return f"{ranks} saved at step {self.step}{where}."


Agreement = Generator[RankCommand, Answers, "Saved | None"]
"""Yields a command for every rank, receives the answers; returns None if no rank has a callback."""


def agree(terms: Terms, clock: Callable[[], float]) -> Agreement:
    """Make all ranks act at one step; after a checkpoint they wait for `release`. `clock` is monotonic.

    Raises `terms.action.failure`.
    """
    party = _Party(terms, clock)
    try:
        if not (yield from _prepare(party)):
            yield from party.send("cancel")
            return None
        step = yield from _promise(party)
    except AgreementFailed:
        yield from party.send("cancel")
        raise
    try:
        yield from _confirm(party)
        yield from _await_saved(party)
    except AgreementFailed:
        yield from party.send("release", exit=False)
        raise
    ranks = tuple(sorted(party.ranks, key=_order))
    return Saved(step, next((one.path for one in ranks if one.path), None), len(ranks), ranks)


@dataclass
class _Party:
    """The ranks that take part, each with its latest answer."""

    terms: Terms
    clock: Callable[[], float]
    ranks: tuple[RankState, ...] = ()
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = self.clock() + self.terms.timeout

    def send(self, name: str, delay_s: float = 0.0, **fields: Any) -> Generator[RankCommand, Answers, Answers]:
        return (yield RankCommand(name, {"id": self.terms.id, **fields}, delay_s, self.terms.action))

    def prepare(self) -> Generator[RankCommand, Answers, Answers]:
        options = self.terms.options
        fields: dict[str, Any] = {} if options is None else {"options": asdict(options)}
        return (yield from self.send("prepare", **fields))

    def failed(self, text: str) -> AgreementFailed:
        return self.terms.action.failure(text)

    def update(self, answers: Answers) -> None:
        """Raises AgreementFailed if a rank did not answer."""
        found = {one.key: one for one in answers.ranks}
        if lost := [one for one in self.ranks if one.key not in found]:
            raise self.failed(f"{_names(lost)} no longer answers{_because(answers.silent)}")
        self.ranks = tuple(found[one.key] for one in self.ranks)

    def require_time(self, what: str) -> None:
        if self.clock() >= self.deadline:
            behind = [one for one in self.ranks if one.state != SAVED] or list(self.ranks)
            raise self.failed(f"{what} within {self.terms.timeout:g} s: {_names(behind)}")


def _prepare(party: _Party) -> Generator[RankCommand, Answers, bool]:
    """Return whether the ranks can act. Raises AgreementFailed if only some can."""
    action = party.terms.action
    party.ranks = _members(party, (yield from party.prepare()))
    if busy := [one for one in party.ranks if one.id != party.terms.id]:
        raise party.failed(
            f"{_names(busy)} takes part in another checkpoint or defragmentation{_because(_errors(busy))}"
        )
    unable = [one for one in party.ranks if not one.callback] if action is CHECKPOINT else []
    if unable and len(unable) < len(party.ranks):
        raise party.failed(
            f"{_names(unable)}: no checkpoint callback, but other ranks have one: call gpufrag.on_checkpoint in each"
        )
    if failing := [one for one in party.ranks if one.error]:
        raise party.failed(f"{_names(failing)} cannot {action.verb}{_because(_errors(failing))}")
    return not unable


def _promise(party: _Party) -> Generator[RankCommand, Answers, int]:
    """Return the step that all ranks have promised."""
    lead = party.terms.lead
    for _ in range(MAX_TRIES):
        if new := [one for one in party.ranks if one.step is None]:
            raise party.failed(f"{_names(new)} has not finished a step yet; try again once training is running")
        step = target_step(party.ranks, lead)
        party.update((yield from party.send("at", step=step, patience=party.terms.patience, hold=party.terms.hold)))
        if all(one.state == PROMISED and one.target == step for one in party.ranks):
            return step
        yield from party.send("cancel")  # first, because some ranks may be waiting at that step
        party.require_time("no step was agreed on")
        lead *= 4
        party.update((yield from party.prepare()))
    raise party.failed(f"no step was agreed on in {MAX_TRIES} tries: the steps are too short for the commands")


def target_step(ranks: Sequence[RankState], lead: float) -> int:
    """Return the step to try, `lead` seconds ahead of the leading rank."""
    fastest = max(SHORTEST_STEP_S, min((one.step_seconds for one in ranks if one.step_seconds), default=lead))
    return max(one.step or 0 for one in ranks) + 1 + math.floor(lead / fastest)


def _confirm(party: _Party) -> Generator[RankCommand, Answers, None]:
    delay_s = 0.0
    while True:
        answers = yield from party.send("confirm", delay_s)
        if not answers.silent:
            party.update(answers)
            if all(one.state != PROMISED for one in party.ranks):
                return
        party.require_time("not all ranks received the confirmation")
        delay_s = FIRST_POLL_S


def _await_saved(party: _Party) -> Generator[RankCommand, Answers, None]:
    delay_s = FIRST_POLL_S
    while True:
        if failed := [one for one in party.ranks if one.id != party.terms.id or one.state not in (CONFIRMED, SAVED)]:
            raise party.failed(f"{_names(failed)} did not {party.terms.action.verb}{_because(_errors(failed))}")
        if all(one.state == SAVED for one in party.ranks):
            return
        party.require_time(f"not all ranks have {party.terms.action.participle}")
        party.update((yield from party.send("status", delay_s)))
        delay_s = min(2 * delay_s, POLL_S)


def _members(party: _Party, answers: Answers) -> tuple[RankState, ...]:
    """Return the job's ranks, complete and each once. Raises AgreementFailed.

    A process without a rank and without a callback (an evaluation, a server) is not part of the job.
    """
    if answers.silent:
        raise party.failed(f"cannot reach all ranks{_because(answers.silent)}")
    if party.terms.alone:
        if len(answers.ranks) != 1:
            found = "several processes have this rank" if answers.ranks else "the process has ended"
            raise party.failed(f"{found}: name one running process by PID")
        return answers.ranks
    saves = party.terms.action is CHECKPOINT
    ranked = [one for one in answers.ranks if one.rank is not None]
    members = [one for one in answers.ranks if not ranked or one.rank is not None or (saves and one.callback)]
    if not members:
        raise party.failed("no rank was found: check that the job starts gpufrag and uses this folder")
    if not (saves or ranked) and len(members) > 1:  # unrelated processes have no common step
        raise party.failed(f"{_names(members)} have no rank, so they cannot agree on a step: name one process by PID")
    numbers = sorted(one.rank for one in ranked if one.rank is not None)
    if twice := [a for a, b in itertools.pairwise(numbers) if a == b]:
        raise party.failed(f"two processes claim rank {twice[0]}: the folder serves more than one job")
    size = max((one.world_size or 0 for one in ranked), default=0)
    if ranked and len(numbers) < size:
        known = frozenset(numbers)
        absent = (str(number) for number in range(size) if number not in known)  # a lying rank may claim any size
        missing = list(itertools.islice(absent, MAX_NAMED + 1))
        shown = ", ".join(missing[:MAX_NAMED]) + (", …" if len(missing) > MAX_NAMED else "")
        why = "it has died, has no agent or is on another host"
        raise party.failed(f"rank {shown} of {size}: no answer: {why}")
    return tuple(members)


def _order(one: RankState) -> tuple[int, int]:
    return (0, one.rank) if one.rank is not None else (1, one.pid)


def _names(ranks: Sequence[RankState]) -> str:
    shown = ", ".join(str(one) for one in sorted(ranks, key=_order)[:MAX_NAMED])
    return shown + (f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else "")


def _errors(ranks: Sequence[RankState]) -> list[str]:
    return [one.error for one in ranks if one.error]


def _because(reasons: Sequence[str]) -> str:
    return f": {'; '.join(dict.fromkeys(reasons[:MAX_NAMED]))}" if reasons else ""
