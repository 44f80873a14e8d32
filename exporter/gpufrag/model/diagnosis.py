"""Whether a heap needs attention (fine, tune or act), and what is wrong with it: findings from a table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from ..units import format_bytes
from .allocatable import main_stream
from .call_sites import Stack, is_in_program
from .fragmentation import Fragmentation
from .heap import INACTIVE
from .trace.profile import NEARLY_FULL, Moment, Profile, SiteStats

ACT_RATIO = 4.0
"""The restart alert's threshold."""
TUNE_RATIO = 2.0
TUNE_SHARE, ACT_SHARE = 0.2, 0.4
"""Shares of reserved memory that is not in use."""
COMPARE = "compare allocator settings with `gpufrag whatif`; expandable_segments:True usually helps most"


class Health(str, Enum):
    FINE = "fine"
    TUNE = "tune"
    ACT = "act"


class Assessment(NamedTuple):
    health: Health
    reason: str
    """One clause with the deciding figure."""


class Finding(NamedTuple):
    name: str
    """The rule's name, for JSON."""
    cause: str
    evidence: str
    change: str
    """One thing to do."""
    gain: int | None = None
    """Bytes that the change saves, if the trace shows it."""


def assess(found: Fragmentation) -> Assessment:
    """Assess one device's heap: by its fragmentation ratio, or by its stranded share if the driver is unknown."""
    if found.largest_allocatable == 0:
        return Assessment(Health.ACT, "no further request can succeed")
    if found.ratio is None:
        share = found.stranded / found.reserved if found.reserved else 0.0
        pinned = f"{share:.0%} of reserved memory is pinned between live blocks"
        text = f"{pinned}; the ratio is unknown without the driver's figures"
        return Assessment(_health_of_share(share), text)
    largest, free = format_bytes(found.largest_allocatable or 0), format_bytes(found.free_total or 0)
    reason = f"ratio {found.ratio:.2f}: the largest possible request is {largest}, of {free} free"
    if _nearly_full(found):
        return Assessment(Health.TUNE, f"less than {NEARLY_FULL:.0%} of the limit is free ({free}); {reason}")
    if found.ratio > ACT_RATIO:
        return Assessment(Health.ACT, reason)
    return Assessment(Health.TUNE if found.ratio > TUNE_RATIO else Health.FINE, reason)


def _nearly_full(found: Fragmentation) -> bool:
    return None not in (found.limit, found.free_total) and (found.free_total or 0) <= NEARLY_FULL * (found.limit or 0)


def assess_profile(profile: Profile) -> Assessment:
    """Assess a device over its trace: the worse of its worst ratio and its unused share at the peak."""
    moment, ratio = _assessed_moment(profile)
    if not profile.events:
        return ratio
    reserved, active = format_bytes(profile.peak_reserved), format_bytes(profile.peak.active)
    reason = f"peak reserved {reserved} for {active} active at the peak ({profile.peak_fragmentation:.0%} unused)"
    peak = Assessment(_health_of_share(profile.peak_fragmentation), reason)
    worse = ratio if _severity(ratio) > _severity(peak) else peak
    at = f" after {moment.events:,} of {profile.events:,} events"
    deciding = ratio.reason.partition(";")[0]
    return Assessment(worse.health, reason if worse is peak else f"{deciding}{at}; {reason}")


def _assessed_moment(profile: Profile) -> tuple[Moment, Assessment]:
    """Return the profile's worst moment, or the first of those with a worse assessment."""
    moments = [profile.worst, *profile.moments]
    return max(((moment, assess(moment.found)) for moment in moments), key=lambda one: _severity(one[1]))


def _severity(assessment: Assessment) -> int:
    return list(Health).index(assessment.health)


def _health_of_share(share: float) -> Health:
    return Health.ACT if share > ACT_SHARE else Health.TUNE if share > TUNE_SHARE else Health.FINE


def where(stack: Stack) -> str:
    """Return the innermost frame of a call site and its caller: `a.py:88 in f, called at a.py:120 in main`."""
    if not stack:
        return "code without a recorded Python stack"
    return ", called at ".join(frame.replace(" ", " in ", 1) for frame in stack[:2])


def findings(profile: Profile) -> list[Finding]:
    """Return what the rules find, largest gain first."""
    found = [finding for rule in RULES for finding in rule(profile)]
    return sorted(found, key=lambda finding: -(finding.gain or 0))


def _largest(sites: Iterable[tuple[Stack, SiteStats]]) -> tuple[Stack, SiteStats] | None:
    return max(sites, key=lambda site: (site[1].size, site[0]), default=None)


def _dynamic_shapes(profile: Profile) -> Iterator[Finding]:
    """Many sizes from one call site leave gaps that fit none of the next ones."""
    if profile.worst.found.stranded < 0.05 * profile.worst.reserved:
        return
    varying = _largest(
        (stack, stats)
        for stack, stats in profile.stats.items()
        if is_in_program(stack) and stats.sizes >= 8 and stats.count >= 16
    )
    if varying:
        stack, stats = varying
        yield Finding(
            "dynamic_shapes",
            "tensor sizes vary from step to step, so freed blocks do not fit the next request",
            f"{where(stack)} allocated {stats.sizes:,} sizes above 1 MiB in {stats.count:,} allocations "
            f"({format_bytes(stats.size)} in total)",
            "pad or bucket the inputs to few shapes, or set expandable_segments:True",
        )


def _small_surge(profile: Profile) -> Iterator[Finding]:
    total = sum(stats.count for stats in profile.stats.values())
    surge = _largest(
        (stack, stats)
        for stack, stats in profile.stats.items()
        if is_in_program(stack) and stats.count >= max(1000, 0.3 * total) and stats.small >= 0.95 * stats.count
    )
    if surge:
        stack, stats = surge
        yield Finding(
            "small_allocations",
            "one call site makes a large part of all allocations, each up to 1 MiB",
            f"{where(stack)} made {stats.count:,} of {total:,} allocations ({format_bytes(stats.size)} in total)",
            "allocate one tensor and write into slices of it, or stack the small tensors",
        )


def _empty_cache(profile: Profile) -> Iterator[Finding]:
    if profile.empty_caches >= 3:
        yield Finding(
            "empty_cache",
            "torch.cuda.empty_cache() in the loop returns memory that the next step allocates again",
            f"{profile.empty_caches:,} calls returned {format_bytes(profile.emptied)}",
            "remove the calls of empty_cache(): the allocator returns free memory on its own before it fails",
        )


def _large_temporary(profile: Profile) -> Iterator[Finding]:
    temporary = profile.temporary
    if temporary is not None and temporary.size >= 0.2 * profile.peak.active:
        tensor = f"the tensor of {where(temporary.stack)}" if is_in_program(temporary.stack) else "this tensor"
        yield Finding(
            "large_temporary",
            "one short-lived tensor makes a large part of the peak",
            f"{where(temporary.stack)} holds {format_bytes(temporary.size)} of "
            f"{format_bytes(profile.peak.active)} at the peak, and frees it soon after",
            f"compute {tensor} in chunks, or in place",
            temporary.size,
        )


def _late_optimizer(profile: Profile) -> Iterator[Finding]:
    late = [
        (stack, stats) for stack, stats in profile.stats.items() if stats.optimizer and stats.kept_size and stats.late
    ]
    size = sum(stats.kept_size for _, stats in late)
    largest = _largest(late)
    if largest and size >= 0.01 * profile.peak_reserved:
        more = f" with {len(late) - 1} more call sites" if len(late) > 1 else ""
        yield Finding(
            "late_optimizer_state",
            "the optimizer created its state after the first activations, between their blocks",
            f"{where(largest[0])}{more} holds {format_bytes(size)} of optimizer state",
            "create the optimizer's state before the first forward pass: run one optimizer step with zero gradients "
            "and zero learning rate",
        )


def _kept_across_steps(profile: Profile) -> Iterator[Finding]:
    kept = _largest(
        (stack, stats)
        for stack, stats in profile.stats.items()
        if is_in_program(stack)
        and not stats.optimizer
        and len(stats.kept_stretches) >= 5
        and stats.kept >= 0.5 * stats.count
    )
    if kept:
        stack, stats = kept
        yield Finding(
            "kept_across_steps",
            "tensors that were allocated throughout the trace are still live at its end",
            f"{where(stack)} keeps {stats.kept:,} of {stats.count:,} blocks ({format_bytes(stats.kept_size)})",
            f"at {where(stack)}, keep numbers instead of tensors (.item(), .detach().cpu()), or bound the cache",
            stats.kept_size,
        )


def _captive(profile: Profile) -> Iterator[Finding]:
    found = profile.worst.found
    if found.captive >= max(64 << 20, 0.05 * found.reserved):
        yield Finding(
            "private_pools",
            "private pools (CUDA graphs, MemPool) hold free memory that no other code can use",
            f"{format_bytes(found.captive)} of {format_bytes(found.private_pool_reserved)} in private pools is free",
            "capture fewer graphs, let them share one pool, or delete those not in use",
            found.captive,
        )


def _other_streams(profile: Profile) -> Iterator[Finding]:
    main = main_stream(profile.heap)
    free = sum(
        size
        for segment in profile.heap.segments
        if segment.stream != main and not segment.private
        for size, state in zip(segment.sizes, segment.states)
        if state is INACTIVE
    )
    if free >= max(64 << 20, 0.1 * profile.worst.reserved):
        yield Finding(
            "other_streams",
            "free blocks of one stream serve no request on another",
            f"{format_bytes(free)} is free on streams other than the main one ({main})",
            "allocate on one stream and use record_stream, or give side streams smaller buffers",
            free,
        )


def _oversize(profile: Profile) -> Iterator[Finding]:
    least = profile.heap.settings.max_split_size
    if least is None:
        return
    free = sum(
        size
        for segment in profile.heap.segments
        for size, state in zip(segment.sizes, segment.states)
        if state is INACTIVE and size >= least and not segment.private
    )
    if free >= max(64 << 20, 0.1 * profile.worst.reserved):
        yield Finding(
            "oversize_blocks",
            "max_split_size keeps large free blocks whole, so they serve only requests of nearly their size",
            f"{format_bytes(free)} is free in blocks of at least {format_bytes(least)}",
            "raise max_split_size_mb, or use expandable_segments:True instead",
            free,
        )


def _outside(profile: Profile) -> Iterator[Finding]:
    driver = profile.driver
    if driver.size is None or driver.free is None:
        return
    outside = driver.size - driver.free - profile.worst.reserved - (profile.others or 0)
    if outside >= max(2 << 30, 0.05 * driver.size):
        yield Finding(
            "outside_the_allocator",
            "memory is in use outside this process's allocator: CUDA context, NCCL, libraries"
            + ("" if profile.others else ", or other processes"),
            f"{format_bytes(outside)} of {format_bytes(driver.size)}",
            "list the device's processes (nvidia-smi); for NCCL, lower NCCL_BUFFSIZE or the number of communicators",
        )


def _shared(profile: Profile) -> Iterator[Finding]:
    others, size = profile.others or 0, profile.driver.size
    if others >= max(1 << 30, 0.02 * (size or 0)):
        of = "" if size is None else f" of {format_bytes(size)}"
        yield Finding(
            "shared_device",
            "other processes hold memory of this device, and what they take next is not available to this one",
            f"{format_bytes(others)}{of}",
            "run them on another device, or give each process a limit with set_per_process_memory_fraction",
            others,
        )


def _limit(profile: Profile) -> Iterator[Finding]:
    limit, size = profile.driver.limit, profile.driver.size
    if limit is not None and size is not None and limit < 0.95 * size:
        yield Finding(
            "limit_below_device",
            "the process's memory limit is below the device's size",
            f"the limit is {format_bytes(limit)} of {format_bytes(size)}",
            "raise set_per_process_memory_fraction if no other process needs the memory",
        )


def _unused(profile: Profile) -> Iterator[Finding]:
    share = profile.peak_fragmentation
    if profile.events and share > TUNE_SHARE:
        unused = profile.peak_reserved - profile.peak.active
        above = f"more than {ACT_SHARE if share > ACT_SHARE else TUNE_SHARE:.0%}"
        yield Finding(
            "unused_share",
            f"{above} of the reserved memory is not in use at the peak",
            f"{format_bytes(unused)} of {format_bytes(profile.peak_reserved)}",
            COMPARE,
        )


def _pinned(profile: Profile) -> Iterator[Finding]:
    """Why the verdict is not fine, where no share of the peak explains it."""
    moment, assessment = _assessed_moment(profile)
    found = moment.found
    if assessment.health is Health.FINE:
        return
    if _nearly_full(found) or (found.largest_allocatable == 0 and not found.stranded):
        yield Finding(
            "nearly_full",
            "little memory is free, however it is arranged",
            f"{format_bytes(found.free_total or 0)} is free, {format_bytes(found.reserved)} is reserved",
            "request less: smaller batch or sequence, activation checkpointing, sharding; or raise the limit, if it is "
            "below the device's size",
        )
    elif not (profile.events and profile.peak_fragmentation > TUNE_SHARE):
        expandable = profile.heap.settings.expandable_segments
        at = f" after {moment.events:,} of {profile.events:,} events" if profile.events else ""
        yield Finding(
            "pinned_memory",
            "live blocks pin free memory between them, which can serve only small requests",
            f"{format_bytes(found.stranded)} of {format_bytes(found.reserved)} reserved{at}",
            "allocate long-lived tensors before short-lived ones of similar size (expandable segments are on already)"
            if expandable
            else COMPARE
            if profile.events
            else "try expandable_segments:True; from a snapshot with history, `gpufrag whatif` computes its effect",
        )


RULES: tuple[Callable[[Profile], Iterator[Finding]], ...] = (
    _unused,
    _pinned,
    _dynamic_shapes,
    _small_surge,
    _empty_cache,
    _large_temporary,
    _late_optimizer,
    _kept_across_steps,
    _captive,
    _other_streams,
    _oversize,
    _outside,
    _shared,
    _limit,
)
