"""gpufrag explains why a GPU runs out of memory that looks free.

    import gpufrag
    gpufrag.start()

in a training script makes its memory visible to the sidecar, `gpufrag serve`. What is imported here is imported into
training processes: everything else is loaded when it is needed.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which takes longer to import than all that is here

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import TypeVar

    from .agent.torch.defragment import Result
    from .checkpoint.participant import CheckpointRequest

    Save = TypeVar("Save", bound=Callable[[CheckpointRequest], "str | os.PathLike[str] | None"])

__all__ = ["__version__", "checkpoint_on_signal", "defragment", "on_checkpoint", "start", "step_ended", "stop"]

__version__ = "0.1.0"


def start(
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    interval: float | None = None,
    budget: float | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> None:
    """Watch this process's GPU memory from when it first uses a GPU. A second call does nothing.

    port: serve /metrics from this process, on `host`; the ranks of a host add their local rank to it. None leaves
        that to the sidecar.
    interval: seconds, at least, between two looks at the allocator's heap (GPUFRAG_INTERVAL, 10).
    budget: the largest share of time that these looks may take (GPUFRAG_BUDGET, 0.001).
    folder: where the sidecar finds this process (GPUFRAG_DIR).

    GPUFRAG_DISABLE=1 in the environment makes it do nothing. Raises UsageError for a value that cannot be, and
    Unavailable where the port cannot be had.
    """
    from pathlib import Path

    from . import agent

    agent.start(interval=interval, budget=budget, folder=None if folder is None else Path(folder))
    if port is not None and not agent.disabled():
        from .agent.identity import identify
        from .metrics.in_process_server import serve

        serve(port + (identify().local_rank or 0 if port else 0), host, agent.latest)


def stop() -> None:
    """Undo `start`: a last sample is left in the folder, and the process no longer listens."""
    import sys

    from . import agent

    agent.stop()
    if serving := sys.modules.get(f"{__name__}.metrics.in_process_server"):
        serving.close()


def on_checkpoint(save: Save) -> Save:
    """Have `save(request)` called when a checkpoint is asked for before a restart. Call it in the thread that trains.

        @gpufrag.on_checkpoint
        def save(request):
            path = f"checkpoints/{request.step}.pt"
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            return path

    It runs in that thread, between two steps, at a step on which all ranks have agreed: `request.step`. So it may save
    collectively. It returns where it has saved, or None. If it raises, whoever asked is told, and training goes on.
    A second call replaces the first one's function. docs/checkpoint.md has the contract.
    """
    from . import agent

    if not agent.disabled():
        from .checkpoint import participant as checkpoint

        checkpoint.register(save)
    return save


def step_ended(step: int | None = None) -> None:
    """Say where a step of the training loop ends, where that is not the end of its optimizer's step.

    With it, a checkpoint is saved after a scheduler's step too, and in a loop that has no optimizer of torch. `step` is
    the loop's own number, if it has one that is the same in all ranks.
    """
    import sys

    if checkpoint := sys.modules.get(f"{__name__}.checkpoint.participant"):
        checkpoint.step_ended(step)


def checkpoint_on_signal(*signals: int, timeout: float = 600.0) -> None:
    """Save, and end with 42, at one of these signals: by default SIGTERM and SIGUSR1. Call it in the main thread.

    It goes with `on_checkpoint`: all ranks of a host are signalled, and agree on a step. What the signal did before
    (the program's own handler, or the end of the process) happens where nothing can be saved within `timeout` seconds.
    Ranks on several hosts cannot agree this way: they are asked by the restarter. Raises UsageError.
    """
    import signal

    from . import agent

    if not agent.disabled():
        from .checkpoint.signals import SignalCheckpoint

        SignalCheckpoint(timeout).install(signals or (signal.SIGTERM, signal.SIGUSR1))


def defragment(
    *,
    device: int | None = None,
    target_ratio: float | None = None,
    target_bytes: int | None = None,
    plan_only: bool = False,
    verify: bool = False,
    host_limit: int | None = None,
    allow_graphs: bool = False,
) -> Result:
    """Move tensors' storages so that free GPU memory becomes one piece again. Tensors stay the same objects.

    Call it in the training thread, between two steps: after `optimizer.step()`, with no backward pass under way.

    device: its index; None is the current one.
    target_ratio, target_bytes: stop when the fragmentation ratio is at most this, or one request of this many bytes
        fits. Without a target everything that helps is moved.
    plan_only: move nothing; the result has what a move would achieve.
    verify: compare a checksum of every storage before and after its move.
    host_limit: most bytes of host memory to use; None is half of what is available.
    allow_graphs: move although the process has CUDA graphs or memory pools. A captured graph that reads a moved tensor
        is broken afterwards.

    Raises gpufrag.agent.torch.defragment.Refused if it is unsafe now (nothing was moved), and
    gpufrag.errors.Unavailable if a move failed (every byte is back in place). docs/defragment.md has the details.
    """
    import torch

    from .agent.torch.defragment import Options
    from .agent.torch.defragment import defragment as move
    from .model.defragment import Target

    options = Options(Target(target_ratio, target_bytes), plan_only, verify, host_limit, allow_graphs)
    return move(torch, torch.cuda.current_device() if device is None else device, options)
