"""Who takes part, and what is said about them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .records import Heard, NotSaved, RankState

NAMED = 3
"""Ranks that one sentence names."""


def admitted(heard: Heard) -> tuple[RankState, ...]:
    """The ranks of the job, complete and each once. Raises NotSaved where they are not.

    Beside them, a process that has neither a rank nor a callback (an evaluation, a server) is none of the job.
    """
    if heard.silent:
        raise NotSaved(f"not all ranks could be asked{because(heard.silent)}")
    ranked = [one for one in heard.ranks if one.rank is not None]
    party = [one for one in heard.ranks if not ranked or one.rank is not None or one.callback]
    if not party:
        raise NotSaved("no rank was found: is gpufrag started in the job, and does its folder lie where this looks?")
    _require_one_job(ranked)
    return tuple(party)


def _require_one_job(ranked: Sequence[RankState]) -> None:
    """Each rank once, and as many as there are said to be."""
    numbers = sorted(one.rank for one in ranked if one.rank is not None)
    twice = [a for a, b in itertools.pairwise(numbers) if a == b]
    if twice:
        raise NotSaved(f"two processes say that they are rank {twice[0]}: the folder serves more than one job")
    size = max((one.world_size or 0 for one in ranked), default=0)
    if ranked and len(numbers) < size:
        missing = [str(number) for number in range(size) if number not in numbers]
        shown = ", ".join(missing[:NAMED]) + (", …" if len(missing) > NAMED else "")
        raise NotSaved(f"rank {shown} of {size} does not answer: it has died, has no agent, or is on another host")


def by_rank(one: RankState) -> tuple[int, int]:
    return (0, one.rank) if one.rank is not None else (1, one.pid)


def names(ranks: Sequence[RankState]) -> str:
    shown = ", ".join(str(one) for one in sorted(ranks, key=by_rank)[:NAMED])
    return shown + (f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else "")


def errors(ranks: Sequence[RankState]) -> list[str]:
    return [one.error for one in ranks if one.error]


def because(reasons: Sequence[str]) -> str:
    return f": {'; '.join(dict.fromkeys(reasons[:NAMED]))}" if reasons else ""
