"""Live memory by call site, and which call sites grew between two snapshots.

Blocks have stacks only if the process records its allocator's history.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ..errors import one_line
from .heap import ALLOCATED

FRAMES = 4
"""Innermost frames of the program, torch's own left out, that make a call site."""
MOST_FRAMES = 64
"""Of a full stack, innermost first."""
MOST_TEXT = 200
"""Characters of a frame; a longer one keeps its end, which has the line and the function."""
_NODE = re.compile(r"torch::autograd::(?:\w{1,80}::){0,3}(\w{1,80})::(?:apply|evaluate_function)\b")
"""The operator of the backward pass in a C++ frame, or the engine that runs it."""
_BACKWARD = "autograd:"
GROWN = 3
"""Call sites in a result."""
_TORCH = re.compile(r"/torch/(?:_\w+|amp|autograd|cuda|distributed|functional|nn|optim|utils)(?:/|\.py$)")
"""Of a torch outside site-packages, such as one that was built in its source folder."""

Stack = tuple[str, ...]
"""`file:line function`, innermost first. Without Python frames: `autograd:AddmmBackward0 backward` if C++ frames show a
backward pass, else empty."""


class Held(NamedTuple):
    size: int
    """Bytes."""
    blocks: int


class Grown(NamedTuple):
    stack: Stack
    size: int
    blocks: int


Sites = Mapping[int, Mapping[Stack, Held]]
"""By device."""


def read(snapshot: Mapping[str, Any], only_recorded: bool = False) -> Sites:
    """Return the live memory by call site of a snapshot that `heap.parse` accepts.

    only_recorded: leave out blocks whose call site is unknown.
    """
    sites: dict[int, dict[Stack, Held]] = {}
    for segment in snapshot["segments"]:
        held = sites.setdefault(segment["device"], {})
        for block in segment["blocks"]:
            if block["state"] == ALLOCATED:
                stack = call_site(frames_of(block))
                if only_recorded and not stack:
                    continue
                size, blocks = held.get(stack, (0, 0))
                held[stack] = Held(size + block["size"], blocks + 1)
    return sites


def grown(before: Mapping[Stack, Held], now: Mapping[Stack, Held]) -> list[Grown]:
    """Return the call sites that hold more bytes in more blocks than before, largest growth first."""
    nothing = Held(0, 0)
    differences = (
        Grown(stack, held.size - before.get(stack, nothing).size, held.blocks - before.get(stack, nothing).blocks)
        for stack, held in now.items()
    )
    growing = [place for place in differences if place.size > 0 and place.blocks > 0]
    return sorted(growing, key=lambda place: (-place.size, place.stack))[:GROWN]


def frames_of(block: Mapping[str, Any]) -> Sequence[Any]:
    """Return the frames of a block; torch 2.0 has them in the block's history."""
    history = block.get("history")
    return block.get("frames") or (history[0].get("frames") if history else None) or ()


def call_site(frames: Iterable[Any]) -> Stack:
    """Return the innermost FRAMES frames of the program, torch's own left out; else the operator of a backward pass."""
    frames = list(frames)
    return tuple(islice(_own_python(frames), FRAMES)) or _backward(frames)


def _backward(frames: Sequence[Any]) -> Stack:
    """Return the innermost operator of autograd: the threads of a backward pass have C++ frames only."""
    if any(map(_is_python, frames)):
        return ()
    nodes = (_NODE.search(str(frame.get("name", ""))) for frame in frames)
    return next(((f"{_BACKWARD}{node[1]} backward",) for node in nodes if node), ())


def is_in_program(stack: Stack) -> bool:
    """Return whether the stack names a line of the program."""
    return bool(stack) and not stack[0].startswith(_BACKWARD)


def has_cpp(stacks: Iterable[Iterable[Any]]) -> bool:
    """Return whether any stack has C++ frames."""
    return any(not _is_python(frame) for frames in stacks for frame in frames)


def full_stack(frames: Iterable[Any]) -> Stack:
    """Return up to MOST_FRAMES Python frames, torch's own included; C++ frames if there is no Python frame."""
    texts = list(islice(map(_text, filter(_is_python, frames)), MOST_FRAMES))
    return tuple(texts or islice(map(_text, frames), MOST_FRAMES))


def _is_python(frame: Any) -> bool:
    return str(frame.get("filename", "")).endswith((".py", ">"))


def _text(frame: Any) -> str:
    return one_line(f"{frame.get('filename')}:{frame.get('line')} {frame.get('name')}")[-MOST_TEXT:]


def _own_python(frames: Any) -> Iterator[str]:
    """Leave out torch's own frames and C++ (recorded with stacks="all")."""
    for frame in frames:
        if _is_python(frame) and not _is_torch(str(frame["filename"])):
            yield _text(frame)


def _is_torch(file: str) -> bool:
    return "/torch/" in file and ("-packages/torch/" in file or _TORCH.search(file) is not None)
