"""gpufrag explains why a GPU runs out of memory that looks free.

To make the memory of a training script visible to the sidecar (`gpufrag serve`):

    import gpufrag
    gpufrag.start()

Training processes import this module, so it loads everything else on first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which takes longer to import than everything here

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import TypeVar

    from .checkpoint.participant import CheckpointRequest
    from .wire.defragmentation import Result

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
    """Watch this process's GPU memory from its first use of a GPU.

    If the agent already runs, only `port` has an effect.

    port: serve /metrics from this process, on `host` at this port plus the local rank. None: the sidecar serves the
        metrics.
    interval: minimum seconds between two recorded steps or snapshots (GPUFRAG_INTERVAL, 10).
    budget: largest share of wall time that they may take (GPUFRAG_BUDGET, 0.001).
    folder: where the sidecar finds this process (GPUFRAG_DIR).

    Does nothing if GPUFRAG_DISABLE=1 is set. Raises UsageError for an invalid value, and Unavailable if the
    port is not available.
    """
    from pathlib import Path

    from . import agent

    agent.start(interval=interval, budget=budget, folder=None if folder is None else Path(folder))
    if port is not None and not agent.disabled():
        from .agent.identity import identify
        from .metrics.in_process_server import serve

        serve(port + (identify().local_rank or 0 if port else 0), host, agent.latest)


def stop() -> None:
    """Undo `start`: write a last sample and stop listening."""
    import sys

    from . import agent

    agent.stop()
    if serving := sys.modules.get(f"{__name__}.metrics.in_process_server"):
        serving.close()


def on_checkpoint(save: Save) -> Save:
    """Call `save(request)` when a checkpoint is requested, for example before a restart. Use it in the training thread.

        @gpufrag.on_checkpoint
        def save(request):
            if rank != 0:
                return None  # if the model is sharded, every rank must save
            path = f"checkpoints/{request.step}.pt"
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            return path

    `save` runs in that thread of every rank, between two steps, after the step that all ranks agreed on
    (`request.step`), so it may use collectives. It returns the path it saved to, or None. If it raises, the requester
    gets the error and training continues. A second call replaces the function. docs/checkpoint.md has the contract.
    """
    from . import agent

    if not agent.disabled():
        from .checkpoint import participant as checkpoint

        checkpoint.register(save)
    return save


def step_ended(step: int | None = None) -> None:
    """Mark the end of a training step. From the first call on, checkpoints and defragmentations happen only here.

    Call it after the scheduler's step, so that a checkpoint includes that step. Loops without a torch optimizer
    need it.

    step: the loop's own step number, the same in all ranks. None: the calls are counted.
    """
    import sys

    if checkpoint := sys.modules.get(f"{__name__}.checkpoint.participant"):
        checkpoint.step_ended(step)


def checkpoint_on_signal(*signals: int, timeout: float = 600.0) -> None:
    """Save a checkpoint and exit with status 42 at these signals (default: SIGTERM and SIGUSR1).

    Call it in the main thread, together with `on_checkpoint`. Every rank of the host must receive one of the signals;
    the ranks then agree on a step. If nothing can be saved within `timeout` seconds, the signal has its previous
    effect. Ranks on several hosts cannot agree this way: in Kubernetes, use the restarter. Raises UsageError outside
    the main thread, or if a signal cannot be handled.
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
    """Move the storages of tensors, so that free GPU memory becomes one piece again. Tensors stay the same objects.

    Call it in the training thread, between two steps: after `optimizer.step()`, with no backward pass under way.

    device: its index; None is the current one.
    target_ratio, target_bytes: stop when the fragmentation ratio is at most this, or one request of this many bytes
        fits. Without a target, move everything that helps.
    plan_only: move nothing; the result has what a move would achieve.
    verify: compare a checksum of every storage before and after its move.
    host_limit: most bytes of host memory to use; None is half of what is available.
    allow_graphs: move even if the process has CUDA graphs or memory pools. A captured graph that reads a moved tensor
        is broken afterwards.

    Raises gpufrag.agent.torch.defragment.Refused if a move is unsafe now (nothing was moved), and
    gpufrag.errors.Unavailable if a move failed (every byte is back in place). docs/defragment.md has the details.
    """
    import torch

    from .agent.torch.defragment import defragment as move
    from .wire.defragmentation import DefragmentOptions

    options = DefragmentOptions(plan_only, verify, target_ratio, target_bytes, host_limit, allow_graphs)
    return move(torch, device, options)
