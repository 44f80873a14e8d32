"""By which labels a process goes, such that no two share a set and none changes it while it lives.

A process with a rank is `rank`, and its successor after a restart goes on under the same name. One without a
rank has `process` = its pid instead. Where several processes claim one rank, one has the plain name (of the living
the one that started first, else the last that died) and the others carry `process` beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from ..wire.sample import Identity
from .view import RankView

Labels = dict[str, str]
Name = tuple[tuple[str, str], ...]
MAX_LABEL = 256


class NamedRank(NamedTuple):
    labels: Labels
    view: RankView


def clean(value: object) -> str:
    """A label's value: valid UTF-8 and at most MAX_LABEL characters, for it may come from anybody's environment."""
    text = str(value)
    if len(text) > MAX_LABEL:
        text = f"{text[: MAX_LABEL - 1]}…"
    return text.encode("utf-8", "replace").decode()


def name_ranks(views: Sequence[RankView]) -> list[NamedRank]:
    """Every process under its labels, by rank. The same process seen twice is named once."""
    named: dict[Name, RankView] = {}
    seen = set()
    for view in sorted(views, key=_claim):
        who = view.sample.identity
        if (identity := (who.host, who.pid, who.start)) not in seen:
            seen.add(identity)
            name = next(name for name in _names(who) if name not in named)
            named[name] = view
    return [NamedRank(dict(name), named[name]) for name in sorted(named, key=lambda name: _order(named[name], name))]


def _claim(view: RankView) -> tuple[bool, float, str, int]:
    """The lower, the better the claim to the plain name."""
    who = view.sample.identity
    return not view.alive, who.start if view.alive else -who.start, who.host, who.pid


def _names(who: Identity) -> Iterator[Name]:
    """From the plain name on, without end: pids repeat where containers share a folder."""
    rank: Name = () if who.rank is None else (("rank", clean(who.rank)),)
    if rank:
        yield rank
    yield (*rank, ("process", clean(who.pid)))
    yield (*rank, ("process", clean(f"{who.pid}-{who.start}")))
    for number in count(2):
        yield (*rank, ("process", f"{who.pid}-{who.start}-{number}"))


def _order(view: RankView, name: Name) -> tuple[bool, int, Name]:
    rank = view.sample.identity.rank
    return rank is None, rank or 0, name
