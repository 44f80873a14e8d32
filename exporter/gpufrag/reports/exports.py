"""Files for other tools: live memory by stack for speedscope, the trace for Perfetto."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import __version__
from ..model.call_sites import Stack, full_stack
from ..model.culprits import stranded_shares
from ..model.heap import INACTIVE, Heap
from ..model.trace.columns import Trace
from ..model.trace.events import ALLOC, EMPTY_CACHE, FREE_COMPLETED, OOM
from ..model.trace.profile import frames_of_blocks
from .explain import Explained
from .html.data import NO_STACK, full_stacks, sizes_after

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
INSTANTS = {OOM: "out of memory", EMPTY_CACHE: "empty_cache"}
MOST_BLOCKS = 500
"""Blocks of a trace that Perfetto shows from allocation to free, the largest first."""


def speedscope(explained: Sequence[Explained], raw: Any, name: str) -> dict[str, Any]:
    """Return a file in speedscope's format.

    It has for each device the live bytes at the snapshot, and the live and the stranded bytes at the worst moment.
    """
    frames: dict[str, int] = {}
    profiles = []
    for each in explained:
        profile = each.profile
        at_end = full_stacks(frames_of_blocks(_segments(raw), profile.device))
        stacks = full_stacks(profile.frames)
        parts = [("live at the snapshot", _live(each.end), at_end)]
        if profile.events:
            parts.append(("live at the worst moment", _live(profile.heap), stacks))
        parts.append(("stranded at the worst moment", stranded_shares(profile.heap, profile.sites), stacks))
        for title, sizes, known in parts:
            profiles.append(_sampled(f"device {profile.device}: {title}", sizes, known, frames))
    return {
        "$schema": SCHEMA,
        "name": name,
        "exporter": f"gpufrag {__version__}",
        "shared": {"frames": [_frame(text) for text in frames]},
        "profiles": profiles,
    }


def _segments(raw: Any) -> Sequence[Mapping[str, Any]]:
    segments: Sequence[Mapping[str, Any]] = raw["segments"] if isinstance(raw, Mapping) else raw
    return segments


def _live(heap: Heap) -> dict[int, int]:
    return {
        block.address: block.size
        for segment in heap.segments
        for block in segment.blocks()
        if block.state is not INACTIVE
    }


def _sampled(
    title: str, sizes: Mapping[int, int], stacks: Mapping[int, Stack], frames: dict[str, int]
) -> dict[str, Any]:
    by_stack: dict[Stack, int] = {}
    for address, size in sizes.items():
        stack = stacks.get(address) or (NO_STACK,)
        by_stack[stack] = by_stack.get(stack, 0) + size
    return {
        "type": "sampled",
        "name": title,
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(by_stack.values()),
        "samples": [[frames.setdefault(frame, len(frames)) for frame in reversed(stack)] for stack in by_stack],
        "weights": list(by_stack.values()),
    }


def _frame(text: str) -> dict[str, Any]:
    """`file:line function` in speedscope's fields."""
    place, _, function = text.partition(" ")
    file, _, line = place.rpartition(":")
    return {"name": text, "file": file, "line": int(line)} if function and line.isdecimal() else {"name": text}


def perfetto(explained: Sequence[Explained], name: str) -> dict[str, Any]:
    """Return a file in the trace event format that Perfetto and chrome://tracing read: each device is a process.

    Without times in the trace an event takes a microsecond.
    """
    rows = [row for each in explained if each.events for row in _trace(each)]
    about = {"file": name, "exporter": f"gpufrag {__version__}"}
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": rows}


def _trace(explained: Explained) -> Iterator[dict[str, Any]]:
    events, profile = explained.events, explained.profile
    device = profile.device
    times = range(len(events)) if events.times is None else [time - events.times[0] for time in events.times]
    yield {"ph": "M", "name": "process_name", "pid": device, "args": {"name": f"device {device}"}}
    for title, moment in (("worst moment", profile.worst.events), ("most active memory", profile.peak.events)):
        yield _instant(title, device, times[max(0, moment - 1)])
    before = (-1, -1)
    for action, time, after in zip(events.actions, times, sizes_after(events, explained.end)):
        if action in INSTANTS:
            yield _instant(INSTANTS[action], device, time)
        for kind, size, earlier in zip(("requested", "reserved"), after, before):
            if size != earlier:
                yield {"ph": "C", "name": kind, "pid": device, "ts": time, "args": {"bytes": size}}
        before = after
    for begin, end in _largest_blocks(events):
        event, stack = events[begin], full_stack(events.frames[begin] or ())
        own = {"cat": "block", "name": next(iter(stack), NO_STACK), "pid": device, "tid": 0, "id": hex(begin)}
        about = {"address": hex(event.address or 0), "bytes": event.size, "stream": event.stream, "stack": list(stack)}
        yield {"ph": "b", "ts": times[begin], **own, "args": about}
        yield {"ph": "e", "ts": times[-1 if end is None else end], **own}


def _instant(name: str, device: int, time: int) -> dict[str, Any]:
    return {"ph": "i", "name": name, "pid": device, "tid": 0, "ts": time, "s": "p"}


def _largest_blocks(events: Trace) -> list[tuple[int, int | None]]:
    """Return the indices of allocation and free (None: live at the end) of the largest blocks of the trace."""
    ends: dict[int, int | None] = {}
    live: dict[int, int] = {}
    for index, (action, address) in enumerate(zip(events.actions, events.addresses)):
        if action is ALLOC:
            ends[index] = None
            live[address] = index
        elif action is FREE_COMPLETED and address in live:
            ends[live.pop(address)] = index
    largest = heapq.nlargest(MOST_BLOCKS, ends, key=lambda index: (events.sizes[index], -index))
    return [(index, ends[index]) for index in sorted(largest)]
