"""Live memory by the place in the program that asked for it, and what of it grew between two snapshots.

Only a snapshot of a process that records its allocator's history has such places: each block carries its stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .heap import ALLOCATED

FRAMES = 4
"""Of a stack, so many innermost frames of the program itself tell its place."""
MOST_TEXT = 200
"""Characters of a frame; of a longer one its end, where the line and the function are."""
GROWN = 3
"""So many places are told."""
TORCH = "-packages/torch/"

Stack = tuple[str, ...]
"""`file:line function`, innermost first. Empty for memory without a Python stack, as that of a backward pass."""


class Held(NamedTuple):
    size: int
    """Bytes."""
    blocks: int


class Grown(NamedTuple):
    """A place that holds so much more than before."""

    stack: Stack
    size: int
    blocks: int


Sites = Mapping[int, Mapping[Stack, Held]]
"""By device."""


def read(snapshot: Mapping[str, Any]) -> Sites:
    """Of torch's snapshot, whose form `heap.parse` has checked; a block without frames has none."""
    sites: dict[int, dict[Stack, Held]] = {}
    for segment in snapshot["segments"]:
        held = sites.setdefault(segment["device"], {})
        for block in segment["blocks"]:
            if block["state"] == ALLOCATED:
                stack = _place(block.get("frames") or ())
                size, blocks = held.get(stack, (0, 0))
                held[stack] = Held(size + block["size"], blocks + 1)
    return sites


def grown(before: Mapping[Stack, Held], now: Mapping[Stack, Held]) -> list[Grown]:
    """The places that hold more bytes in more blocks than before, the one that grew most first."""
    nothing = Held(0, 0)
    differences = (
        Grown(stack, held.size - before.get(stack, nothing).size, held.blocks - before.get(stack, nothing).blocks)
        for stack, held in now.items()
    )
    growing = [place for place in differences if place.size > 0 and place.blocks > 0]
    return sorted(growing, key=lambda place: (-place.size, place.stack))[:GROWN]


def _place(frames: Any) -> Stack:
    own = []
    for frame in _python(frames):
        own.append(frame)
        if len(own) == FRAMES:
            break
    return tuple(own)


def _python(frames: Any) -> Iterator[str]:
    """Outside torch, and no C++ (that is there where the user asked for such stacks)."""
    for frame in frames:
        file = str(frame.get("filename", ""))
        if file.endswith((".py", ">")) and TORCH not in file:
            yield f"{file}:{frame.get('line')} {frame.get('name')}"[-MOST_TEXT:]
