"""Where the program is: its frames, bounded, and the main thread's where the asking one has none."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpufrag.agent import stack


def deep(levels: int, then: Callable[[], Any]) -> Any:
    return deep(levels - 1, then) if levels else then()


def test_the_innermost_frame_is_the_first() -> None:
    found = stack.here()
    assert found.of == "thread"
    assert found.frames[0].file == __file__
    assert found.frames[0].function == "test_the_innermost_frame_is_the_first"
    assert found.frames[0].line > 0


def test_of_a_deep_stack_the_inner_part_is_told() -> None:
    found = deep(200, stack.here)
    assert len(found.frames) == stack.MOST_FRAMES
    assert {frame.function for frame in found.frames} == {"deep"}


def test_a_thread_without_python_of_its_own_shows_the_main_one(monkeypatch) -> None:
    """As one of autograd's own: there is nothing in it but what the agent does."""
    seen = []
    monkeypatch.setattr(stack, "_OWN", (stack._OWN, __file__, threading.__file__))
    thread = threading.Thread(target=lambda: seen.append(stack.here()))
    thread.start()
    thread.join(20)
    assert seen[0].of == "main"
    assert seen[0].frames


@given(st.text(st.characters(), max_size=400), st.integers(0, 300))
def test_a_text_takes_no_more_than_it_may_and_can_be_written(text: str, most: int) -> None:
    written = json.dumps(stack.clean(text, most))
    assert len(written) <= most + 2
    json.loads(written).encode()


@given(st.text(st.characters(max_codepoint=126, exclude_categories=["Cc"]), max_size=100))
def test_a_short_name_stays_as_it_is(text: str) -> None:
    assert stack.clean(text) == text


def test_the_end_of_a_long_name_is_kept() -> None:
    assert stack.clean("/very/long/path/train.py", 8) == "train.py"
