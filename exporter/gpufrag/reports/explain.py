"""`gpufrag explain`, `timeline` and `diff` as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ..model.anchor import anchor_size
from ..model.call_sites import Stack, has_cpp, is_in_program
from ..model.culprits import Culprit, culprits
from ..model.diagnosis import COMPARE, Assessment, Finding, Health, assess_profile, findings, where
from ..model.fragmentation import Fragmentation
from ..model.heap import INACTIVE, Heap
from ..model.trace.columns import Trace
from ..model.trace.comparison import WORTHWHILE, saves_enough
from ..model.trace.profile import Frames, Moment, Profile
from ..units import format_bytes, format_duration
from .terminal import Emphasis

SHOWN = 5
"""Culprits, call sites and pieces of advice in the text; JSON has all."""
UNKNOWN = "–"
LESS_IN_USE = ("large_temporary", "kept_across_steps")
"""Findings whose gain is memory in use. The gain of the others is free memory that becomes usable."""
CONF = "PYTORCH_CUDA_ALLOC_CONF"
HOW_STACKS = (
    "record a running job with `gpufrag record PID --steps 3 --stacks`, or call "
    "torch.cuda.memory._record_memory_history() at its start"
)


HOW_CPP = (
    '  without a Python stack: the backward pass, or C++ code; to see which, call _record_memory_history(stacks="all")'
)


class Tried(NamedTuple):
    """A setting under which the trace was replayed."""

    conf: str
    peak: int
    """Bytes of peak reserved memory."""
    saves: int
    """Bytes of that peak, against the recorded setting."""
    failed_before: int
    failed: int
    """Requests that fail under it."""
    anchor: int = 0
    """Bytes of the anchor; 0 is none."""

    @property
    def helps(self) -> bool:
        """Whether the setting is worth a change, by the rule of `gpufrag whatif`."""
        if self.failed or self.failed_before:  # the peak of an incomplete run cannot be compared
            return self.failed < self.failed_before
        return self.saves > 0 and saves_enough(self.peak, self.peak + self.saves)


@dataclass(frozen=True)
class Explained:
    """A device's profile, the trace that it comes from, and the settings under which the trace was replayed."""

    profile: Profile
    events: Trace
    end: Heap
    tried: Sequence[Tried] = ()
    untried: str = "compare settings with `gpufrag whatif`"
    """Why no setting was replayed."""

    @cached_property
    def analysis(self) -> Analysis:
        found, rules = culprits(self.profile.heap, self.profile.driver, self.profile.sites), findings(self.profile)
        return Analysis(assess_profile(self.profile), found, rules, advice(self, found, rules))


@dataclass(frozen=True)
class Advice:
    change: str
    gain: int | None
    """Bytes, measured with the model; None if not measured."""
    what: str
    """What the gain is."""

    @property
    def gain_text(self) -> str:
        return self.what if self.gain is None else f"{format_bytes(self.gain)} {self.what}"


class Analysis(NamedTuple):
    assessment: Assessment
    culprits: Sequence[Culprit]
    findings: Sequence[Finding]
    advice: Sequence[Advice]


def advice(explained: Explained, found: Sequence[Culprit], rules: Sequence[Finding]) -> list[Advice]:
    """Return settings, code changes and findings, largest measured gain first."""
    result = []
    for tried in explained.tried:
        fewer = tried.failed_before - tried.failed
        if tried.helps:
            what = "lower peak reserved" if tried.saves > 0 else ""
            if fewer:
                what += f"{', ' if what else ''}{fewer} fewer failed requests"
            change = f"set {tried.conf}" if tried.conf else f"unset {CONF}"
            if tried.anchor:
                change = f"start the job with `gpufrag run --anchor {anchor_size(tried.anchor)}`, and unset {CONF}"
                what += "; no other process can use the anchor's memory"
            result.append(Advice(change, tried.saves if tried.saves > 0 else None, what))
    for culprit in found:
        gain = culprit.unpinned if culprit.allocatable is None else culprit.allocatable
        if gain and is_in_program(culprit.stack):
            what = "reclaimable" if culprit.allocatable is None else "larger possible request"
            blocks = f"the blocks of {where(culprit.stack)}"
            change = f"allocate {blocks} before larger blocks, or copy them and free the originals"
            result.append(Advice(change, gain, what))
    for rule in rules:
        if rule.change == COMPARE and any(tried.helps for tried in explained.tried):
            continue
        what = "less in use" if rule.name in LESS_IN_USE else "more usable"
        result.append(Advice(rule.change, rule.gain, what if rule.gain else "not measured"))
    unique = {each.change: each for each in sorted(result, key=lambda each: each.gain or 0)}
    return sorted(unique.values(), key=lambda each: -(each.gain or 0))


def as_record(explained: Explained) -> dict[str, Any]:
    profile = explained.profile
    assessment, found, rules, ranked = explained.analysis
    return {
        "device": profile.device,
        "verdict": assessment.health.value,
        "reason": assessment.reason,
        "note": profile.note or None,
        "stacks_recorded": profile.has_stacks,
        "events": profile.events,
        "peak_reserved": profile.peak_reserved,
        "peak_active": profile.peak.active,
        "peak_fragmentation": profile.peak_fragmentation if profile.events else None,
        "worst": moment_record(profile.worst),
        "culprits": [
            {
                "stack": list(culprit.stack),
                "blocks": culprit.blocks,
                "bytes": culprit.size,
                "pinned_bytes": culprit.pins,
                "unpinned_bytes": culprit.unpinned,
                "allocatable_bytes": culprit.allocatable,
            }
            for culprit in found
        ],
        "findings": [rule._asdict() for rule in rules],
        "settings": [tried._asdict() for tried in explained.tried],
        "advice": [vars(each) for each in ranked],
    }


def worst_first(explained: Sequence[Explained]) -> list[Explained]:
    """Return the devices by verdict; those of one verdict stay in order."""
    return sorted(explained, key=lambda each: list(Health).index(each.analysis.assessment.health), reverse=True)


def best_setting(explained: Explained) -> str:
    """Return in one sentence what the best of the replayed settings would change, or why none was replayed."""
    if not explained.tried:
        return f"no setting tested: {explained.untried if explained.events else 'there is no usable trace'}"
    best = min(explained.tried, key=lambda tried: (tried.failed, tried.peak))
    if not best.helps:
        if best.failed_before:
            return "no tested setting would let failed requests succeed"
        return f"no tested setting would lower the peak by {WORTHWHILE:.0%} or more"
    name = f"`gpufrag run --anchor {anchor_size(best.anchor)}`" if best.anchor else best.conf or "torch's defaults"
    if best.failed_before:
        return f"{name} would let {best.failed_before - best.failed} of {best.failed_before} failed requests succeed"
    before = best.peak + best.saves
    if saves_enough(before, explained.profile.peak_reserved):  # the replay packs blocks that are older than the trace
        return (
            f"{name} would lower the peak from {format_bytes(before)} to {format_bytes(best.peak)}, "
            "if the trace started without gaps"
        )
    return f"{name} would lower the peak to {format_bytes(best.peak)} ({format_bytes(best.saves)} less)"


def as_text(explained: Explained, name: str, bold: Emphasis = str, one_of_several: bool = False) -> str:
    """Return the verdict first, then the best setting, culprits, findings and advice."""
    profile = explained.profile
    assessment, found, rules, ranked = explained.analysis
    at = f" at the worst moment (after {profile.worst.events:,} of {profile.events:,} events)" if profile.events else ""
    stranded = profile.worst.found.stranded
    of_device = f"device {profile.device}: " if one_of_several else ""
    lines = [
        bold(f"{assessment.health.value}: {of_device}{assessment.reason}"),
        bold(best_setting(explained)),
        f"device {profile.device} of {name}",
        f"pinned between live blocks: {format_bytes(stranded)} of {format_bytes(profile.worst.reserved)} reserved{at}",
    ]
    if profile.note:
        lines.append(f"note: {profile.note}")
    if not profile.has_stacks:
        lines.append(f"stacks: none recorded, so no line of code can be named; {HOW_STACKS}")
    if found and stranded:
        lines += ["", bold("culprits: live blocks that pin free memory")]
        for number, culprit in enumerate(found[:SHOWN]):
            lines += _culprit_lines(culprit, "these blocks and those above" if number else "these blocks")
        if len(found) > SHOWN:
            rest = sum(culprit.pins for culprit in found[SHOWN:])
            lines.append(f"  {len(found) - SHOWN} more call sites pin {format_bytes(rest)}")
        if profile.has_stacks and not all(each.stack for each in found) and not has_cpp(profile.frames.values()):
            lines.append(HOW_CPP)
    lines += ["", bold("findings" if rules else "No findings.")]
    for rule in rules:
        lines += [f"  {rule.cause}", f"    evidence  {rule.evidence}", f"    change    {rule.change}"]
    if ranked:
        lines += ["", bold("advice, largest measured gain first")]
        for number, each in enumerate(ranked[:SHOWN], 1):
            lines.append(f"  {number}. {each.change} ({each.gain_text})")
    return "\n".join(lines)


def _culprit_lines(culprit: Culprit, moved: str) -> Iterator[str]:
    size, pins = format_bytes(culprit.size), format_bytes(culprit.pins)
    yield f"  {where(culprit.stack)} keeps {_counted(culprit.blocks)} ({size}); share of the pinned memory: {pins}"
    if not culprit.allocatable and not culprit.unpinned:
        return
    if culprit.allocatable is not None:
        gain = f"the largest request could be {format_bytes(culprit.allocatable)} larger"
    else:
        gain = f"torch could return {format_bytes(culprit.unpinned or 0)} more to the driver"
    yield f"    if {moved} were in separate segments, {gain}"


def _counted(blocks: int) -> str:
    return f"{blocks:,} block{'' if blocks == 1 else 's'}"


def moment_record(moment: Moment) -> dict[str, Any]:
    found = moment.found
    return {
        "events": moment.events,
        "seconds": moment.time,
        "active": moment.active,
        "reserved": moment.reserved,
        "stranded": found.stranded,
        "largest_allocatable": found.largest_allocatable,
        "fragmentation_ratio": found.ratio,
        "reservable": moment.reservable,
    }


def timeline_record(profile: Profile) -> dict[str, Any]:
    return {
        "device": profile.device,
        "moments": [moment_record(moment) for moment in profile.moments],
        "worst": moment_record(profile.worst),
        "live_at_worst": [
            {"stack": list(stack), "blocks": blocks, "bytes": size} for stack, blocks, size in live_sites(profile)
        ],
    }


def timeline_text(profile: Profile, name: str, bold: Emphasis = str) -> str:
    """Return a row per moment, the worst one marked, and what was live then."""
    head = f"{'events':>12}{'time':>12}{'active':>12}{'reserved':>12}{'stranded':>12}{'ratio':>8}{'reservable':>12}"
    lines = [bold(f"device {profile.device} of {name}"), bold(head)]
    for moment in profile.moments:
        ratio = UNKNOWN if moment.found.ratio is None else f"{moment.found.ratio:.2f}"
        reservable = UNKNOWN if moment.reservable is None else format_bytes(moment.reservable)
        time = UNKNOWN if moment.time is None else format_duration(moment.time)
        sizes = "".join(f"{format_bytes(s):>12}" for s in (moment.active, moment.reserved, moment.found.stranded))
        mark = "  worst" if moment is profile.worst else ""
        lines.append(f"{moment.events:>12,}{time:>12}{sizes}{ratio:>8}{reservable:>12}{mark}")
    lines += ["", bold("live at the worst moment")]
    for stack, blocks, size in live_sites(profile)[:SHOWN]:
        lines.append(f"  {format_bytes(size):>10} in {_counted(blocks)}: {where(stack)}")
    return "\n".join(lines)


def live_sites(profile: Profile) -> list[tuple[Stack, int, int]]:
    """Return call site, blocks and bytes of what is live at the worst moment, largest first."""
    held = _held(profile.heap, profile.sites)
    return sorted(((stack, *figures) for stack, figures in held.items()), key=lambda row: (-row[2], row[0]))


def _held(heap: Heap, sites: Mapping[int, Stack]) -> dict[Stack, tuple[int, int]]:
    held: dict[Stack, tuple[int, int]] = {}
    for segment in heap.segments:
        for block in segment.blocks():
            if block.state is not INACTIVE:
                stack = sites.get(block.address, ())
                blocks, size = held.get(stack, (0, 0))
                held[stack] = blocks + 1, size + block.size
    return held


class Side(NamedTuple):
    """One device of one of two snapshots. `frames` are those of its live blocks by address."""

    heap: Heap
    sites: Mapping[int, Stack]
    found: Fragmentation
    frames: Mapping[int, Frames]


COMPARED = ("reserved", "active", "free_cached", "stranded", "reclaimable", "largest_free_block", "captive")
LEAST_GAP = 1 << 20
"""Free blocks below this size are not compared."""


def diff_record(before: Side, after: Side) -> dict[str, Any]:
    """Compare one device of two snapshots: quantities, call sites, gaps, and suspected leaks."""
    old, new = _held(before.heap, before.sites), _held(after.heap, after.sites)
    changes: list[dict[str, Any]] = []
    for stack in {*old, *new}:
        (blocks, size), (then_blocks, then_size) = new.get(stack, (0, 0)), old.get(stack, (0, 0))
        if (blocks, size) != (then_blocks, then_size):
            changes.append({"stack": list(stack), "blocks": blocks - then_blocks, "bytes": size - then_size})
    changes.sort(key=lambda change: (-abs(change["bytes"]), change["stack"]))
    gaps, earlier = _gaps(after.heap), _gaps(before.heap)
    return {
        "device": after.found.device,
        "quantities": {
            name: {"before": getattr(before.found, name), "after": getattr(after.found, name)} for name in COMPARED
        },
        "call_sites": changes,
        "leak_suspects": [
            change for change in changes if change["bytes"] > 0 and change["blocks"] > 0 and change["stack"]
        ],
        "gaps_appeared": [{"address": at, "bytes": size} for at, size in sorted(gaps - earlier)],
        "gaps_closed": [{"address": at, "bytes": size} for at, size in sorted(earlier - gaps)],
    }


def _gaps(heap: Heap) -> set[tuple[int, int]]:
    """Return address and size of the free blocks of at least LEAST_GAP between others in their segment."""
    return {
        (block.address, block.size)
        for segment in heap.segments
        if len(segment.sizes) > 1
        for block in segment.blocks()
        if block.state is INACTIVE and block.size >= LEAST_GAP
    }


def diff_text(record: dict[str, Any], names: tuple[str, str], bold: Emphasis = str) -> str:
    lines = [bold(f"device {record['device']}: {names[0]} -> {names[1]}"), ""]
    for name, figures in record["quantities"].items():
        change = figures["after"] - figures["before"]
        row = f"  {name:<20}{format_bytes(figures['before']):>12}{format_bytes(figures['after']):>12}"
        lines.append(row + (f"{'+' * (change > 0) + format_bytes(change):>12}" if change else ""))
    for title, key in (
        ("changes by call site", "call_sites"),
        ("leak suspects", "leak_suspects"),
    ):
        lines += ["", bold(title if record[key] else f"No {title}.")]
        for change in record[key][: 2 * SHOWN]:
            sign = "+" if change["bytes"] > 0 else ""
            size = f"{sign}{format_bytes(change['bytes'])}"
            blocks = f"{change['blocks']:+,} block{'' if abs(change['blocks']) == 1 else 's'}"
            lines.append(f"  {size:>12}, {blocks}: {where(tuple(change['stack']))}")
    for title, key in (("appeared", "gaps_appeared"), ("closed", "gaps_closed")):
        total = sum(gap["bytes"] for gap in record[key])
        lines.append(f"gaps {title}: {len(record[key]):,} ({format_bytes(total)}, each at least 1 MiB)")
    return "\n".join(lines)
