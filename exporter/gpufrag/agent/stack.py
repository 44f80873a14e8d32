"""Where the program is just now: file, line and function of each frame, bounded, and no text of the source."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from ..wire.oom_report import Frame

MOST_FRAMES = 40
MOST_TEXT = 400
"""Bytes of a file's or a function's name, as they are written."""
_OWN = f"{Path(__file__).parent}/"


class Stack(NamedTuple):
    """Innermost first; `of` is `thread` or `main` (see OomReport.stack_of)."""

    frames: tuple[Frame, ...]
    of: str


def here() -> Stack:
    """Of the calling thread; of the main thread where this one runs nothing but the agent, as autograd's own do."""
    frames = _frames(sys._getframe())
    if frames or threading.get_ident() == threading.main_thread().ident:
        return Stack(frames, "thread")
    return Stack(_frames(sys._current_frames().get(threading.main_thread().ident or 0)), "main")


def clean(text: str, most: int = MOST_TEXT) -> str:
    """As much of its end as takes `most` bytes in JSON, where a character can take twelve."""
    if text.isascii() and text.isprintable() and len(text) <= most // 2:  # a quote takes two
        return text
    kept: list[str] = []
    for character in reversed(text):
        written = character.encode("utf-8", "replace").decode()
        most -= len(json.dumps(written)) - 2
        if most < 0:
            break
        kept.append(written)
    return "".join(reversed(kept))


def _frames(frame: FrameType | None) -> tuple[Frame, ...]:
    found: list[Frame] = []
    while frame is not None and len(found) < MOST_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(_OWN):
            name = getattr(code, "co_qualname", code.co_name)  # Python 3.11
            found.append(Frame(clean(code.co_filename), max(0, frame.f_lineno or 0), clean(name)))
        frame = frame.f_back
    return tuple(found)
