"""What the charts of an HTML report show, as JSON: the memory map, the timeline, flame graphs, free blocks."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

from ...model.call_sites import Stack, full_stack
from ...model.culprits import stranded_shares
from ...model.fragmentation import SIZE_BOUNDS
from ...model.heap import INACTIVE, Heap
from ...model.layout import map_states
from ...model.trace.columns import Trace
from ...model.trace.events import OOM
from ...model.trace.profile import Frames, Moment, Profile

POINTS = 1500
"""Of a curve; each is the maximum of an equal part of the trace."""
MOST_OOMS = 50
LEAST_SHARE = 0.0005
"""Share of the total below which a flame graph omits a frame."""
NO_STACK = "no recorded stack"


def device_data(profile: Profile, events: Trace, end: Heap) -> dict[str, Any]:
    stacks = full_stacks(profile.frames)
    shares = stranded_shares(profile.heap, profile.sites)
    live = {
        block.address: block.size
        for segment in profile.heap.segments
        for block in segment.blocks()
        if block.state is not INACTIVE
    }
    return {
        "device": profile.device,
        "map": heap_map(profile.heap, stacks, shares),
        "timeline": timeline(profile, events, end) if events else None,
        "live": flames(live, stacks),
        "stranded": flames(shares, stacks),
        "free": free_blocks(profile.heap),
    }


def full_stacks(frames: Mapping[int, Frames]) -> dict[int, Stack]:
    """Return the full stack of each block by address. Torch shares the frames of equal stacks: each is read once."""
    known: dict[int, Stack] = {}
    stacks = {}
    for address, each in frames.items():
        if (stack := known.get(id(each))) is None:
            stack = known[id(each)] = full_stack(each)
        stacks[address] = stack
    return stacks


def heap_map(heap: Heap, stacks: Mapping[int, Stack], shares: Mapping[int, int]) -> dict[str, Any]:
    """Return the segments with columns of their blocks; addresses are text, since JavaScript's numbers end at 2^53."""
    frames: dict[str, int] = {}
    numbers: dict[Stack, int] = {}
    segments = []
    for segment in heap.segments:
        found, pins = [], []
        for block in segment.blocks():
            stack = stacks.get(block.address, ()) if block.state is not INACTIVE else ()
            found.append(numbers.setdefault(stack, len(numbers)) if stack else -1)
            pins.append(shares.get(block.address, 0))
        segments.append(
            {
                "address": hex(segment.address),
                "stream": str(segment.stream),
                "pool": "small" if segment.small else "large",
                "private": f"{segment.pool[0]}, {segment.pool[1]}" if segment.private else "",
                "expandable": segment.expandable,
                "sizes": list(segment.sizes),
                "unused": [
                    size - asked if state is not INACTIVE else 0
                    for size, asked, state in zip(segment.sizes, segment.requested, segment.states)
                ],
                "states": "".join(map_states(segment, heap.settings)),
                "stacks": found,
                "pins": pins,
            }
        )
    listed = [[frames.setdefault(frame, len(frames)) for frame in stack] for stack in numbers]
    return {"segments": segments, "stacks": listed, "frames": list(frames)}


def flames(sizes: Mapping[int, int], stacks: Mapping[int, Stack]) -> dict[str, Any]:
    """Return the tree of a flame graph, outermost frames first, of bytes by address."""
    by_stack: dict[Stack, int] = {}
    for address, size in sizes.items():
        stack = stacks.get(address) or (NO_STACK,)
        by_stack[stack] = by_stack.get(stack, 0) + size
    total = sum(by_stack.values())
    children: dict[str, Any] = {}
    for stack, size in by_stack.items():
        level = children
        for frame in reversed(stack):
            node = level.setdefault(frame, [0, {}])
            node[0] += size
            level = node[1]
    return {"name": "all", "value": total, "children": _flame_level(children, total * LEAST_SHARE)}


def _flame_level(level: Mapping[str, Any], least: float) -> list[dict[str, Any]]:
    rows = sorted(level.items(), key=lambda row: (-row[1][0], row[0]))
    shown = [row for row in rows if row[1][0] >= max(1.0, least)]
    found = [
        {"name": name, "value": size, "children": _flame_level(children, least)} for name, (size, children) in shown
    ]
    rest = sum(size for _, (size, _) in rows[len(shown) :])
    if rest >= max(1.0, least):
        found.append({"name": f"{len(rows) - len(shown):,} smaller", "value": rest, "children": []})
    return found


def free_blocks(heap: Heap) -> list[list[int]]:
    """Return upper bound (0: none), number and bytes of the free blocks of the default pools, by size."""
    rows = [[bound, 0, 0] for bound in (*SIZE_BOUNDS, 0)]
    for segment in heap.segments:
        for size, state in zip(segment.sizes, segment.states):
            if state is INACTIVE and not segment.private:
                row = rows[bisect_left(SIZE_BOUNDS, size)]
                row[1] += 1
                row[2] += size
    return rows


def timeline(profile: Profile, events: Trace, end: Heap) -> dict[str, Any]:
    """Return columns by number of events: requested and reserved bytes, and the figures of the measured moments."""
    curve, ooms = _curve(events, end)
    moments = {moment.events: moment for moment in profile.moments}
    places = sorted({*curve, *moments})
    unknown = (None, None)
    rows = [(*curve.get(place, unknown), *_figures(moments.get(place))) for place in places]
    return {
        "events": places,
        "requested": [row[0] for row in rows],
        "reserved": [row[1] for row in rows],
        "stranded": [row[2] for row in rows],
        "ratio": [row[3] for row in rows],
        "reservable": [row[4] for row in rows],
        "worst": profile.worst.events,
        "peak": profile.peak.events,
        "ooms": ooms,
    }


def _figures(moment: Moment | None) -> tuple[int | None, float | None, int | None]:
    return (None, None, None) if moment is None else (moment.found.stranded, moment.found.ratio, moment.reservable)


def _curve(events: Trace, end: Heap) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """Return the most requested and reserved bytes of each part by its end, and where requests failed."""
    part = max(1, -(-len(events) // POINTS))
    requested, reserved = _after(events, end)
    curve = {}
    for begin in range(0, len(events), part):
        columns = requested[begin : begin + part], reserved[begin : begin + part]
        curve[min(begin + part, len(events))] = max(columns[0]), max(columns[1])
    ooms = [index for index in events.others if events.actions[index] is OOM]
    return curve, ooms[:MOST_OOMS]


def sizes_after(events: Trace, end: Heap) -> Iterator[tuple[int, int]]:
    """Yield the requested and the reserved bytes after each event of a trace that ends in the one-device heap `end`."""
    return zip(*_after(events, end))


def _after(events: Trace, end: Heap) -> tuple[array[int], array[int]]:
    """Return the requested and the reserved bytes after each event."""
    active = events.active()
    requested = sum(block.requested for s in end.segments for block in s.blocks() if block.state is not INACTIVE)
    before = requested - active[-1]
    changes = events.reserved()
    level = sum(segment.size for segment in end.segments) - (changes[-1][1] if changes else 0)
    reserved = array("q", [level]) * (changes[0][0] if changes else len(events))
    for (index, size), (following, _) in zip(changes, [*changes[1:], (len(events), 0)]):
        reserved += array("q", [level + size]) * (following - index)
    return array("q", [before + size for size in active]), reserved
