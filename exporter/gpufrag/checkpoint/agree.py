"""The agreement, as whoever asks leads it: a generator, so that sockets, HTTP and tests can carry it alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .party import admitted, because, by_rank, errors, names
from .records import CONFIRMED, PROMISED, SAVED, Ask, Heard, NotSaved, RankState, Saved, Terms

TRIES = 5
POLL_S = 0.25
FIRST_POLL_S = 0.02

Agreement = Generator[Ask, Heard, "Saved | None"]
"""Yields what to ask, takes what was heard; returns None where no rank has a callback. Raises NotSaved."""


@dataclass
class _Party:
    """The ranks that take part, as they were last heard."""

    terms: Terms
    clock: Callable[[], float]
    ranks: tuple[RankState, ...] = ()
    ends: float = field(init=False)

    def __post_init__(self) -> None:
        self.ends = self.clock() + self.terms.timeout

    def ask(self, command: str, after: float = 0.0, **fields: Any) -> Generator[Ask, Heard, Heard]:
        return (yield Ask(command, {"id": self.terms.id, **fields}, after))

    def follow(self, heard: Heard) -> None:
        """Raises NotSaved where one of the ranks is not there any more."""
        found = {one.key: one for one in heard.ranks}
        if lost := [one for one in self.ranks if one.key not in found]:
            raise NotSaved(f"{names(lost)} no longer answers{because(heard.silent)}")
        self.ranks = tuple(found[one.key] for one in self.ranks)

    def require_time(self, what: str) -> None:
        if self.clock() >= self.ends:
            raise NotSaved(f"{what} within {self.terms.timeout:g} s: {names(self._behind())}")

    def _behind(self) -> list[RankState]:
        return [one for one in self.ranks if one.state != SAVED] or list(self.ranks)


def agree(terms: Terms, clock: Callable[[], float]) -> Agreement:
    """Have all ranks save at one step. Where it returns Saved, they wait for `release`; `clock` is monotonic."""
    party = _Party(terms, clock)
    try:
        able = yield from _prepare(party)
        if not able:
            yield from party.ask("cancel")
            return None
        step = yield from _promise(party)
    except NotSaved:
        yield from party.ask("cancel")
        raise
    try:
        yield from _confirm(party)
        yield from _await_saved(party)
    except NotSaved:
        yield from party.ask("release", exit=False)
        raise
    path = next((one.path for one in sorted(party.ranks, key=by_rank) if one.path), None)
    return Saved(step, path, len(party.ranks))


def target(ranks: Sequence[RankState], lead: float) -> int:
    """The step to try, `lead` seconds ahead of the rank that is farthest. Raises NotSaved before the first step."""
    if new := [one for one in ranks if one.step is None]:
        raise NotSaved(f"{names(new)} has not ended a step yet: ask again when training is under way")
    fastest = min((one.step_seconds for one in ranks if one.step_seconds), default=lead)
    return max(one.step or 0 for one in ranks) + 1 + math.floor(lead / fastest)


def _prepare(party: _Party) -> Generator[Ask, Heard, bool]:
    """Whether there is anybody who can save. Raises NotSaved where only some can."""
    party.ranks = admitted((yield from party.ask("prepare")))
    if refusing := [one for one in party.ranks if one.id != party.terms.id]:
        raise NotSaved(f"{names(refusing)} takes part in another checkpoint{because(errors(refusing))}")
    unable = [one for one in party.ranks if not one.callback]
    if unable and len(unable) < len(party.ranks):
        raise NotSaved(f"{names(unable)} has no checkpoint callback, others have: call gpufrag.on_checkpoint in each")
    if excused := [one for one in party.ranks if one.error]:
        raise NotSaved(f"{names(excused)} cannot save{because(errors(excused))}")
    return not unable


def _promise(party: _Party) -> Generator[Ask, Heard, int]:
    """The step at which all have promised to stop."""
    lead = party.terms.lead
    for _ in range(TRIES):
        step = target(party.ranks, lead)
        terms = {"step": step, "patience": party.terms.patience, "hold": party.terms.hold}
        party.follow((yield from party.ask("at", **terms)))
        if all(one.state == PROMISED and one.target == step for one in party.ranks):
            return step
        yield from party.ask("cancel")  # first of all: some may be waiting at that step
        party.require_time("no step was agreed on")
        lead *= 4
        party.follow((yield from party.ask("prepare")))
    raise NotSaved(f"no step was agreed on in {TRIES} tries: the ranks are faster than the word to them")


def _confirm(party: _Party) -> Generator[Ask, Heard, None]:
    after = 0.0
    while True:
        heard = yield from party.ask("confirm", after)
        if not heard.silent:
            party.follow(heard)
        if not heard.silent and all(one.state != PROMISED for one in party.ranks):
            return
        party.require_time("not all ranks could be told to save")
        after = FIRST_POLL_S


def _await_saved(party: _Party) -> Generator[Ask, Heard, None]:
    after = FIRST_POLL_S
    while not all(one.state == SAVED for one in party.ranks):
        if failed := [one for one in party.ranks if one.state not in (CONFIRMED, SAVED)]:
            raise NotSaved(f"{names(failed)} did not save{because(errors(failed))}")
        party.require_time("not all ranks have saved")
        heard = yield from party.ask("status", after)
        party.follow(heard)
        after = min(2 * after, POLL_S)
