"""The checkpoint that this process is asked for: its program's own function, at a step that all ranks agreed on.

Commands come in over the control socket, in threads of their own; the program's function runs in the thread that
trains, between two steps. A process that has not told how to save has no hook, and pays nothing for any of this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..agent.torch.api import TorchSurface
from ..wire.error_counter import ErrorCounter
from ..wire.sample import Identity
from .records import COMMANDS
from .saving import CheckpointRequest, Save, Saving

__all__ = ["PREFIX", "CheckpointRequest", "Save", "commands", "ended", "here", "register"]

PREFIX = "checkpoint-"


def _recording() -> bool:
    surface = TorchSurface(sys.modules["torch"], ErrorCounter()) if "torch" in sys.modules else None
    return bool(
        surface and surface.ask("cuda.is_initialized") and surface.ask("cuda.is_current_stream_capturing") is not False
    )


_here = Saving(recording=_recording)


def register(save: Save) -> None:
    """Have `save` called when a checkpoint is asked for. In the thread that trains; a second call replaces it."""
    _here.register(save, _watch_steps())


def ended(step: int | None = None) -> None:
    """A step has ended, in the thread that trains."""
    _here.ended(step)


def here() -> Saving:
    """Of this process."""
    return _here


def commands(identify: Callable[[], Identity]) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
    """What the control socket understands of checkpoints."""

    def carrying(name: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        return lambda request: _here.command(name, request, identify())

    return {PREFIX + name: carrying(name) for name in COMMANDS}


_hooks: list[object] = []


def _watch_steps() -> bool:
    """Hook into torch, once, if the process has it."""
    torch = sys.modules.get("torch")
    hook_in = (
        TorchSurface(torch, ErrorCounter()).find("optim.optimizer.register_optimizer_step_post_hook") if torch else None
    )
    if hook_in is not None and not _hooks:
        _hooks.append(hook_in(lambda optimizer, args, kwargs: _here.hooked(optimizer)))
    return bool(_hooks)


def _in_forked_child() -> None:
    """It is another process, which trains nothing unless it says so; a lock may be held by a thread it has not."""
    global _here
    _here = Saving(recording=_recording)


os.register_at_fork(after_in_child=_in_forked_child)
