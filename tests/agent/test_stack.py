"""The Python stack of a report: bounded, and the main thread's if the calling one has none."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpufrag.agent import oom_reporter


def deep(levels: int, then: Callable[[], Any]) -> Any:
    return deep(levels - 1, then) if levels else then()


def test_stack_begins_with_the_innermost_frame() -> None:
    frames, stack_of = oom_reporter.current_stack()
    assert stack_of == "thread"
    assert frames[0].file == __file__
    assert frames[0].function == "test_stack_begins_with_the_innermost_frame"
    assert frames[0].line > 0


def test_deep_stack_is_cut_at_the_outer_end() -> None:
    frames, _ = deep(200, oom_reporter.current_stack)
    assert len(frames) == oom_reporter.MAX_FRAMES
    assert {frame.function for frame in frames} == {"deep"}


def test_thread_without_own_frames_shows_the_main_thread(monkeypatch) -> None:
    """As one of autograd's own: there is nothing in it but what the agent does."""
    seen = []
    monkeypatch.setattr(oom_reporter, "_OWN_FILES", (oom_reporter._OWN_FILES, __file__, threading.__file__))
    thread = threading.Thread(target=lambda: seen.append(oom_reporter.current_stack()))
    thread.start()
    thread.join(20)
    frames, stack_of = seen[0]
    assert stack_of == "main"
    assert frames


@given(st.text(st.characters(), max_size=400), st.integers(0, 300))
def test_cut_text_fits_in_json(text: str, most: int) -> None:
    written = json.dumps(oom_reporter.cut(text, most))
    assert len(written) <= most + 2
    json.loads(written).encode()


@given(st.text(st.characters(max_codepoint=126, exclude_categories=["Cc"]), max_size=100))
def test_short_name_is_not_cut(text: str) -> None:
    assert oom_reporter.cut(text) == text


def test_long_name_keeps_its_end() -> None:
    assert oom_reporter.cut("/very/long/path/train.py", 8) == "train.py"
