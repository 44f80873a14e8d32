"""Why a request for memory failed: from the figures at hand to one of five causes.

That the request did fail is a fact too. Torch raises only after it has given back all it could and asked the
driver once more, so a sum of free bytes that would have held the request, and did not, proves fragmentation
without a look at a single block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from ..units import format_bytes
from .allocatable import Driver
from .evidence import figures, told
from .facts import Facts
from .remedies import next_step

__all__ = ["RULES", "Cause", "Facts", "Verdict", "judge"]

NO_DEVICE = 1 << 50
"""Bytes that no device has."""
NEARLY_FULL = 0.05
"""Of the cap: below it little is won by bringing the free bytes together, as the restart rule has it too."""


class Cause(str, Enum):
    FRAGMENTATION = "fragmentation"
    """The request fits the free bytes together, but no piece of them."""
    CAPACITY = "capacity"
    """It would not fit if all free bytes lay together."""
    LIMIT = "limit"
    """It would fit but for the cap of this process."""
    NEIGHBOURS = "neighbours"
    """It would fit but for the memory of other processes."""
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    cause: Cause
    evidence: tuple[str, ...]
    """Short sentences with figures; the one that decided comes first."""
    missing: tuple[str, ...]
    """What would have to be known to be sure."""
    next_step: str


def judge(facts: Facts) -> Verdict:
    """The first of RULES that holds decides; the last one always does."""
    need = facts.requested or 0
    rule = next(rule for rule in RULES if rule.holds(facts, need))
    advice = rule.advice or next_step(rule.cause.value, facts.allocator, facts.expandable)
    evidence = (rule.reason.format_map(told(facts)), *figures(facts))
    if rule.cause is Cause.FRAGMENTATION and _nearly_full(facts):
        evidence = (*evidence, f"less than {NEARLY_FULL:.0%} of the memory is free: it is nearly full as well")
        advice = f"ask for less as well; {advice}"
    return Verdict(rule.cause, evidence, tuple(_missing(rule, facts, need)), advice)


def _nearly_full(facts: Facts) -> bool:
    return facts.known_free is not None and facts.cap is not None and facts.known_free < NEARLY_FULL * facts.cap


def _refused_by_limit(facts: Facts, need: int) -> bool:
    return facts.refused_by_limit


def _driver_failed(facts: Facts, need: int) -> bool:
    return facts.allocator == "driver"


def _no_request(facts: Facts, need: int) -> bool:
    return facts.requested is None


def _larger_than_device(facts: Facts, need: int) -> bool:
    return need >= NO_DEVICE or (facts.size is not None and need > facts.size)


def _served_now(facts: Facts, need: int) -> bool:
    return facts.largest_allocatable is not None and need <= facts.largest_allocatable


def _unseen_limit(facts: Facts, need: int) -> bool:
    """A limit leaves much of the device free; where little is, the driver's figure is too coarse to prove one."""
    little = facts.driver_free is not None and facts.size is not None and facts.driver_free < NEARLY_FULL * facts.size
    return facts.largest_allocatable is None and facts.limit is None and not little and _driver_has_it(facts, need)


def _driver_could(facts: Facts, need: int) -> bool:
    return facts.largest_allocatable is None and _driver_has_it(facts, need) and _limit_allows_it(facts, need)


def _driver_has_it(facts: Facts, need: int) -> bool:
    """The driver's free bytes need not lie together."""
    return facts.driver_free is not None and need <= Driver.usable(facts.driver_free)


def _limit_allows_it(facts: Facts, need: int) -> bool:
    """By figures that are rounded too coarsely to tell, it need not have."""
    return facts.cap is None or facts.reserved is None or facts.reserved + need + facts.precision <= facts.cap


def _fits_together(facts: Facts, need: int) -> bool:
    if need <= (facts.cached or 0):
        return True
    told = facts.free_total is not None or facts.driver_room is not None
    return told and _fits(need, facts.ceiling())


def _undecided(facts: Facts, need: int) -> bool:
    most = facts.ceiling()
    return most is None or need <= most


def _unexplained(facts: Facts, need: int) -> bool:
    return facts.unexplained is not None and _undecided(facts, need)


def _stopped_by_limit(facts: Facts, need: int) -> bool:
    """Also where other processes are in the way as well: the allocator looks at its limit first."""
    below = facts.room_below(facts.limit)
    return below is not None and need > below and _fits(need, facts.ceiling(limit=False, others=False))


def _stopped_by_others(facts: Facts, need: int) -> bool:
    return facts.driver_room is not None and _fits(need, facts.ceiling(others=False))


def _always(facts: Facts, need: int) -> bool:
    return True


def _fits(need: int, room: int | None) -> bool:
    return room is not None and need <= room


class Rule(NamedTuple):
    cause: Cause
    holds: Callable[[Facts, int], bool]
    reason: str
    """The first piece of evidence."""
    missing: str = ""
    advice: str = ""
    """The next step, where it is not that of the cause."""


RULES = (
    Rule(Cause.LIMIT, _refused_by_limit, "the allocator refused {need} because it would exceed this process's limit"),
    Rule(
        Cause.UNKNOWN,
        _driver_failed,
        "memory ran out for the driver or a library, outside the allocator, and the error does not say how much",
        "the size of the request",
        "see with nvidia-smi who holds the device, and lower the process's memory fraction to leave the driver room",
    ),
    Rule(Cause.UNKNOWN, _no_request, "the error does not say how much was asked for", "the size of the request"),
    Rule(Cause.CAPACITY, _larger_than_device, "{need} is more than the whole device has"),
    Rule(
        Cause.UNKNOWN,
        _served_now,
        "{need} would be served now: it was asked for on another stream, in a private pool, or memory came free since",
        "the stream and the pool of the request",
    ),
    Rule(
        Cause.LIMIT,
        _unseen_limit,
        "the driver had {driver} free for a request of {need}, and needs no contiguous memory: a limit refused it",
        "the process's limit, which was not told; without one, memory came free right after the failure",
    ),
    Rule(
        Cause.UNKNOWN,
        _driver_could,
        "the driver had {driver} free for a request of {need}: it came free right after, or cannot be had in full",
        "what the driver had at the very moment of the failure",
    ),
    Rule(Cause.FRAGMENTATION, _fits_together, "{total} was free in all, enough for {need}, but not in one piece"),
    Rule(
        Cause.UNKNOWN,
        _unexplained,
        "{unexplained} of the device is neither free nor live: the allocator's cache, its context, or others hold it",
        "how much of that is the allocator's own cache",
    ),
    Rule(
        Cause.UNKNOWN,
        _undecided,
        "it is not known whether the free bytes together would have held {need}",
        "the driver's free memory and the free bytes of the cache",
    ),
    Rule(Cause.LIMIT, _stopped_by_limit, "under the limit of {limit}, {total} was left for a request of {need}"),
    Rule(Cause.NEIGHBOURS, _stopped_by_others, "{need} would fit but for {foreign} of other processes"),
    Rule(Cause.CAPACITY, _always, "{need} would not fit if all {total} of free memory lay in one piece"),
)
"""In order: what was said outright, what cannot be, what fits, what stands in the way."""


def _missing(rule: Rule, facts: Facts, need: int) -> Iterator[str]:
    if rule.missing:
        yield rule.missing
    yield from _missing_for_cause(rule.cause, facts, need)
    most = facts.ceiling()
    if facts.precision and most is not None and abs(need - most) <= 4 * facts.precision:
        yield f"exact figures: these are rounded by up to {format_bytes(facts.precision)}, and it was that close"


def _missing_for_cause(cause: Cause, facts: Facts, need: int) -> Iterator[str]:
    if cause is Cause.FRAGMENTATION and facts.largest_allocatable is None and facts.largest_free_block is None:
        yield "the largest free block: how the free bytes lie, and on which stream, is in no sum"
    elif cause is Cause.NEIGHBOURS and facts.others is None:
        yield "which processes hold the device's memory"
    elif cause is Cause.CAPACITY and need < NO_DEVICE:
        yield from _missing_for_capacity(facts, need)


def _missing_for_capacity(facts: Facts, need: int) -> Iterator[str]:
    if facts.size is None:
        yield "the size of the device: whether a higher limit could have held it"
    elif facts.others is None and facts.outside and need <= facts.outside + (facts.ceiling() or 0):
        yield f"who holds the {format_bytes(facts.outside)} outside this allocator: its own process, or others"
