"""Whether a recorded job fits on a card, under which allocator setting, and how often its cache is flushed there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .settings import MIB, Settings
from .trace.whatif import EMPTIED, OWN_HEAP, PACKED, Run, Start, begin_under, best_anchor, smallest_limit

CONTEXT = 600 * MIB
"""What the driver and a CUDA context take next to the allocator: 540 MiB on an H200 with torch 2.11."""


class Card(NamedTuple):
    """A card by its nominal size, and the bytes that the driver reports for it."""

    name: str
    size: int


def _gib(number: float) -> int:
    return int(number * (1 << 30))


# The smallest total that torch's own error messages report for a card of this size
CARDS = (
    Card("16 GB", _gib(14.58)),  # T4
    Card("24 GB", _gib(22.06)),  # A10G, L4
    Card("40 GB", _gib(39.38)),  # A100
    Card("48 GB", _gib(44.39)),  # L40S
    Card("80 GB", _gib(79.10)),  # A100, H100
    Card("96 GB", _gib(94.50)),  # GH200
    Card("141 GB", _gib(139.80)),  # H200
    Card("192 GB", _gib(178.35)),  # B200
)


@dataclass(frozen=True)
class Fit:
    """One setting. Sizes are bytes; None is unknown or does not exist.

    start: how the run begins. If it has older blocks, all settings but the recorded one begin without gaps.
    flushes: times the allocator flushes its cache and asks again, by card; None where the job does not fit. Flushes
    synchronize the device, so they cost time.
    """

    conf: str
    start: Start
    smallest_limit: int | None
    flushes_at_smallest: int | None
    flushes: Mapping[str, int | None]

    @property
    def packed(self) -> bool:
        return self.start.packed


def fit(
    run: Run,
    settings: Mapping[str, Settings],
    cards: Sequence[Card] = CARDS,
    taken: int = CONTEXT,
    progress: Callable[[str], None] = lambda conf: None,
) -> list[Fit]:
    """Return how the run fits on each card, by setting (PYTORCH_CUDA_ALLOC_CONF -> Settings), then with an anchor.

    If the trace begins late, the recorded setting appears three times: from its own heap, packed like the others, and
    from its own heap after empty_cache. taken: bytes of a card that the job cannot have: driver, context, other jobs.
    progress: called with each setting.
    """
    starts = [(conf, setting, PACKED) for conf, setting in settings.items()]
    if not run.complete:
        own = [(conf, setting) for conf, setting in settings.items() if setting == run.end.settings]
        starts = [(*one, OWN_HEAP) for one in own] + starts + [(*one, EMPTIED) for one in own]
    found = []
    for conf, setting, start in starts:
        progress(conf)
        found.append(_fit(run, conf, setting, start, smallest_limit(run, setting, start=start), cards, taken))
    progress("an anchor")
    defaults = Settings(torch=run.end.settings.torch)
    if (anchor := best_anchor(run, defaults)) is not None:
        found.append(_fit(run, "", defaults, Start(anchor=anchor.size), anchor.smallest_limit, cards, taken))
    return found


def _fit(
    run: Run, conf: str, settings: Settings, start: Start, smallest: int | None, cards: Sequence[Card], taken: int
) -> Fit:
    at_smallest = None if smallest is None else _flushes(run, settings, smallest, start)
    flushes = {
        card.name: None
        if smallest is None or card.size - taken < smallest
        else _flushes(run, settings, card.size - taken, start)
        for card in cards
    }
    return Fit(conf, start, smallest, at_smallest, flushes)


def _flushes(run: Run, settings: Settings, limit: int, start: Start) -> int | None:
    """None if a request fails: a larger limit can fail where a smaller one does not."""
    replay = begin_under(run, settings, limit, start)
    if replay is None:
        return None
    replay.run()
    return None if replay.failed else replay.allocator.counters.alloc_retries
