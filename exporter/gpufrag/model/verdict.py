"""Why an allocation failed: one of five causes, with evidence, remaining doubt and a next step.

The failure is a fact too. Torch raises only after it has returned all it can and asked the driver again, so free
bytes that would have held the request, and did not, point to fragmentation without the layout of a single block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from ..units import format_bytes
from .advice import next_step
from .allocatable import Driver
from .facts import CONTEXT, Facts

__all__ = ["RULES", "Cause", "Facts", "Verdict", "judge"]

NO_DEVICE = 1 << 50
"""More bytes than any device has."""
NEARLY_FULL = 0.05
"""Free share of the cap below which defragmenting gains little; the restart alert uses the same share."""
MANY_TIMES = 10
"""Other processes that hold this many times the request are the first thing to fix."""
UNSYNCHRONISED = 64 << 20
"""Slack between two figures that torch reads one after the other."""


class Cause(str, Enum):
    FRAGMENTATION = "fragmentation"
    """The free bytes together would hold the request; no single piece does."""
    CAPACITY = "capacity"
    """The request would not fit even if all free bytes were contiguous."""
    LIMIT = "limit"
    """The request would fit without the per-process limit."""
    NEIGHBOURS = "neighbours"
    """The request would fit without the memory of other processes."""
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    cause: Cause
    evidence: tuple[str, ...]
    """Short sentences with figures; the deciding one first."""
    missing: tuple[str, ...]
    """What is not known and could change the verdict."""
    next_step: str


def judge(facts: Facts) -> Verdict:
    """Apply the first of RULES that holds; the last one always does."""
    need = facts.requested or 0
    rule = next(rule for rule in RULES if rule.holds(facts, need))
    evidence = (rule.reason.format_map(_texts(facts)), *_figures(facts))
    advice = next_step(rule.cause.value, facts)
    if rule.also is not None:
        advice += f"; or, to use the free memory, {next_step(rule.also.value, facts)}"
    if rule.cause is Cause.FRAGMENTATION:
        if facts.known_free is not None and facts.cap is not None and facts.known_free < NEARLY_FULL * facts.cap:
            evidence = (*evidence, f"the device is nearly full: less than {NEARLY_FULL:.0%} of the memory is free")
            advice = f"request less; {advice}"
        if _many_times(facts, facts.foreign, need):
            advice += f"; other processes may hold {format_bytes(facts.foreign)}: {next_step('neighbours', facts)}"
    return Verdict(rule.cause, evidence, tuple(_missing(rule, facts, need)), advice)


def contradiction(facts: Facts) -> str | None:
    """Return which two figures cannot both be true, None if they agree (within rounding)."""
    slack = 2 * facts.precision
    both = (facts.reserved or 0) + (facts.driver_free or 0)
    checks = (
        ("free memory", facts.driver_free, "the device's size", facts.size, slack),
        ("reserved memory", facts.reserved, "the device's size", facts.size, slack),
        ("allocated memory", facts.allocated, "the device's size", facts.size, slack),
        ("allocated memory", facts.allocated, "reserved memory", facts.reserved, slack),
        ("free and reserved memory together", both, "the device's size", facts.size, slack + UNSYNCHRONISED),
    )
    for what, figure, bound, most, allowed in checks:
        if figure is not None and most is not None and figure > most + allowed:
            return f"{what} ({format_bytes(figure)}) exceeds {bound} ({format_bytes(most)})"
    return None


def _driver_failed(facts: Facts, need: int) -> bool:
    return facts.allocator == "driver"


def _no_request(facts: Facts, need: int) -> bool:
    return facts.requested is None


def _larger_than_device(facts: Facts, need: int) -> bool:
    return need >= NO_DEVICE or (facts.size is not None and need > facts.size)


def _driver_could(facts: Facts, need: int) -> bool:
    """The driver's free bytes need not be contiguous. Figures rounded too coarsely do not prove that a limit allows."""
    if facts.largest_allocatable is not None or facts.driver_free is None:
        return False
    allowed = facts.cap is None or facts.reserved is None or facts.reserved + need + facts.precision <= facts.cap
    return allowed and need <= Driver.usable(facts.driver_free)


def _limit_unknown(facts: Facts, need: int) -> bool:
    """A limit leaves much of the device free; on a nearly full device the driver cannot supply its last megabytes."""
    much = facts.size is None or (facts.driver_free or 0) >= NEARLY_FULL * facts.size
    return facts.limit is None and much and _driver_could(facts, need)


def _crowded_out(facts: Facts, need: int) -> bool:
    """Free bytes are scattered, but other processes hold the request many times over and the limit allows it."""
    allowed = facts.limit is None or facts.reserved is None or facts.reserved + need <= facts.limit
    return facts.others is not None and _many_times(facts, facts.others, need) and allowed and _scattered(facts, need)


def _many_times(facts: Facts, held: int, need: int) -> bool:
    return held >= MANY_TIMES * need and facts.size is not None and held > NEARLY_FULL * facts.size


def _scattered(facts: Facts, need: int) -> bool:
    if need <= (facts.cached or 0):
        return True
    known = facts.free_total is not None or facts.driver_room is not None
    return known and _fits(need, facts.ceiling())


def _undecided(facts: Facts, need: int) -> bool:
    most = facts.ceiling()
    return most is None or need <= most


def _stopped_by_limit(facts: Facts, need: int) -> bool:
    """Also if other processes are in the way: the allocator checks its limit first."""
    below = facts.room_below(facts.limit)
    return below is not None and need > below and _fits(need, facts.ceiling(limit=False, others=False))


def _without_others(facts: Facts, need: int) -> bool:
    return facts.driver_room is not None and _fits(need, facts.ceiling(others=False))


def _fits(need: int, room: int | None) -> bool:
    return room is not None and need <= room


class Rule(NamedTuple):
    cause: Cause
    holds: Callable[[Facts, int], bool]
    reason: str
    """The first piece of evidence."""
    missing: str = ""
    also: Cause | None = None
    """A second cause whose advice is given too."""


RULES = (
    Rule(
        Cause.LIMIT,
        lambda facts, need: facts.segment_space is not None,
        "the allocator refused {need}: an expandable segment has {space} of addresses (expandable_segments_reserve)",
    ),
    Rule(
        Cause.LIMIT,
        lambda facts, need: facts.refused_by_limit,
        "the allocator refused {need}: it would exceed the process's limit",
    ),
    Rule(
        Cause.UNKNOWN,
        lambda facts, need: _driver_failed(facts, need) and _no_request(facts, need),
        "the driver or a library ran out of memory outside the allocator; the error does not give the request's size",
        "the size of the request, the device's free memory and who holds the rest",
    ),
    Rule(
        Cause.UNKNOWN,
        _driver_failed,
        "the driver or a library could not get {need}, outside the allocator; the error gives no free memory",
        "the device's free memory and who holds the rest",
    ),
    Rule(Cause.UNKNOWN, _no_request, "the error does not give the size of the request", "the size of the request"),
    Rule(
        Cause.UNKNOWN,
        lambda facts, need: contradiction(facts) is not None,
        "the figures contradict each other: {contradiction}",
        "correct figures: unified memory, or a driver that reports another device, may explain these",
    ),
    Rule(Cause.CAPACITY, _larger_than_device, "{need} is more than the whole device has"),
    Rule(
        Cause.UNKNOWN,
        lambda facts, need: facts.largest_allocatable is not None and need <= facts.largest_allocatable,
        "{need} would succeed now: the request came on another stream or private pool, or memory was freed since",
        "the stream and the pool of the request",
    ),
    Rule(
        Cause.UNKNOWN,
        _limit_unknown,
        "the driver had {driver} free for a request of {need}: a limit may have refused it",
        "the process's limit (the error names none) and the driver's free memory at the moment of the failure",
    ),
    Rule(
        Cause.UNKNOWN,
        _driver_could,
        "the driver had {driver} free for a request of {need}: it became free just after, or is not usable in full",
        "the driver's free memory at the moment of the failure",
    ),
    Rule(
        Cause.NEIGHBOURS,
        _crowded_out,
        "other processes hold {foreign}, many times the {need} requested; {total} more is free, but in no single piece",
        also=Cause.FRAGMENTATION,
    ),
    Rule(Cause.FRAGMENTATION, _scattered, "{total} was free in total, enough for {need}, but in no single piece"),
    Rule(
        Cause.UNKNOWN,
        lambda facts, need: facts.unexplained is not None and _undecided(facts, need),
        "{unexplained} of the device is neither free nor live: the allocator's cache, its context, or other processes",
        "how much of that the allocator has cached",
    ),
    Rule(
        Cause.UNKNOWN,
        _undecided,
        "the free bytes together may or may not have held {need}",
        "the driver's free memory and the free bytes of the cache",
    ),
    Rule(Cause.LIMIT, _stopped_by_limit, "{total} was left below the limit of {limit} for a request of {need}"),
    Rule(
        Cause.NEIGHBOURS,
        lambda facts, need: facts.others is not None and _without_others(facts, need),
        "{need} would fit without the {foreign} of other processes",
    ),
    Rule(
        Cause.NEIGHBOURS,
        _without_others,
        "{need} would fit without {foreign} of unaccounted memory: {outside} is in use outside this allocator, minus "
        "{context} that gpufrag assumes for the process's own context",
    ),
    Rule(
        Cause.CAPACITY,
        lambda facts, need: True,
        "{need} would not fit even if all {total} of free memory were contiguous",
    ),
)
"""In order: what the error states, what contradicts the failure, what would fit, what is in the way."""


def _texts(facts: Facts) -> dict[str, str]:
    """Return what the reasons of RULES refer to."""
    sizes = {
        "need": facts.requested,
        "total": facts.cached if facts.ceiling() is None else facts.ceiling(),
        "driver": facts.driver_free,
        "limit": facts.limit,
        "space": facts.segment_space,
        "foreign": facts.foreign,
        "outside": facts.outside,
        "context": CONTEXT,
        "unexplained": facts.unexplained,
    }
    texts = {name: "an unknown amount" if size is None else format_bytes(size) for name, size in sizes.items()}
    return {**texts, "contradiction": contradiction(facts) or ""}


FIGURES = {
    "largest_allocatable": "the largest request that would have succeeded is {}",
    "largest_free_block": "the largest free block is {}",
    "free_cached": "the allocator's cache has {} free",
    "captive": "{} is free in private pools (CUDA graphs, MemPool), usable only by their owners",
    "driver_free": "the driver has {} free",
    "size": "the device has {}",
    "limit": "the limit of this process is {}",
    "reserved": "the allocator has reserved {}",
    "allocated": "live tensors use {}",
    "others": "other processes use {}",
}
"""Further evidence, as far as known."""


def _figures(facts: Facts) -> Iterator[str]:
    for name, text in FIGURES.items():
        size = getattr(facts, name)
        if size is not None and (size or name not in ("captive", "others")):
            yield text.format(format_bytes(size))


def _missing(rule: Rule, facts: Facts, need: int) -> Iterator[str]:
    if rule.missing:
        yield rule.missing
    yield from _missing_for_cause(rule.cause, facts, need)
    most = facts.ceiling()
    if facts.precision and most is not None and abs(need - most) <= 4 * facts.precision:
        yield f"exact figures: rounding (up to {format_bytes(facts.precision)}) could change the verdict"


def _missing_for_cause(cause: Cause, facts: Facts, need: int) -> Iterator[str]:
    if cause is Cause.FRAGMENTATION and facts.largest_allocatable is None:
        if facts.largest_free_block is None:
            yield "the largest free block, and whether free bytes belong to another stream or a private pool"
        if facts.limit is None and need > (facts.cached or 0):
            yield "the process's limit: the error names none, and some torch versions leave it out"
    elif cause is Cause.NEIGHBOURS and facts.others is None:
        yield "who holds the unaccounted memory: other processes, or a larger context of this process"
    elif cause is Cause.CAPACITY and need < NO_DEVICE:
        if facts.size is None:
            yield "the size of the device: a higher limit may have held the request"
        elif facts.others is None and facts.outside and need <= facts.outside + (facts.ceiling() or 0):
            yield f"who holds the {format_bytes(facts.outside)} outside this allocator: this process or others"
