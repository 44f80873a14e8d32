"""gpufrag: why a GPU with free memory still runs out of it.

    import gpufrag
    gpufrag.start()

in a training script makes its memory visible to the sidecar, `gpufrag serve`. What is imported here is imported into
training processes: everything else is loaded when it is needed.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which takes longer to import than all that is here

if TYPE_CHECKING:
    import os

__all__ = ["__version__", "start", "stop"]

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
        from .serve_self import serve

        serve(port + (identify().local_rank or 0 if port else 0), host, agent.latest)


def stop() -> None:
    """Undo `start`: a last sample is left in the folder, and the process no longer listens."""
    import sys

    from . import agent

    agent.stop()
    if serving := sys.modules.get(f"{__name__}.serve_self"):
        serving.close()
