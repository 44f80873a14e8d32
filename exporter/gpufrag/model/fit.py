"""Whether a recorded job fits on a card, under which allocator setting, and how often its cache is flushed there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .settings import MIB, Settings
from .trace.whatif import Run, begin, smallest_limit

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

    flushes: times the allocator flushes its cache and asks again, by card; None where the job does not fit. Flushes
    synchronize the device, so they cost time.
    """

    conf: str
    smallest_limit: int | None
    flushes_at_smallest: int | None
    flushes: Mapping[str, int | None]


def fit(
    run: Run,
    settings: Mapping[str, Settings],
    cards: Sequence[Card] = CARDS,
    taken: int = CONTEXT,
    progress: Callable[[str], None] = lambda conf: None,
) -> list[Fit]:
    """Return how the run fits on each card, by setting (PYTORCH_CUDA_ALLOC_CONF -> Settings).

    taken: bytes of a card that the job cannot have: driver, context, other jobs. progress: called with each setting.
    """
    found = []
    for conf, setting in settings.items():
        progress(conf)
        smallest = smallest_limit(run, setting)
        at_smallest = None if smallest is None else _flushes(run, setting, smallest)
        flushes = {
            card.name: None
            if smallest is None or card.size - taken < smallest
            else _flushes(run, setting, card.size - taken)
            for card in cards
        }
        found.append(Fit(conf, smallest, at_smallest, flushes))
    return found


def _flushes(run: Run, settings: Settings, limit: int) -> int | None:
    """None if a request fails: a larger limit can fail where a smaller one does not."""
    replay = begin(run, settings, limit, packed=True)
    replay.run()
    return None if replay.failed else replay.allocator.counters.alloc_retries
