"""The agent: samples the allocator inside the training process and publishes one file. It does no harm.

Importing this package starts nothing and imports next to nothing: the shim loads it into every Python process.
"""

from __future__ import annotations

import os

from . import arrival

TYPE_CHECKING = False  # as in typing, which takes longer to import than everything here

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from ..wire.sample import ProcessSample
    from .sources import Source

__all__ = ["disabled", "latest", "start", "stop", "wait"]

_waiting = False


def start(
    source: Source | None = None,
    *,
    interval: float | None = None,
    budget: float | None = None,
    folder: Path | None = None,
) -> None:
    """Start an agent in this process: at once for `source`, else as soon as a framework uses a device.

    None takes the value from the environment (GPUFRAG_INTERVAL, GPUFRAG_BUDGET, GPUFRAG_DIR) or its default. A second
    call does nothing; with GPUFRAG_DISABLE=1 no call does anything. Raises UsageError for an invalid value.
    """
    if disabled():
        return
    from . import lifecycle, settings

    wanted = settings.from_environment(os.environ, interval, budget, folder)
    if source is not None:
        lifecycle.begin(source, wanted)
    else:
        lifecycle.configure(wanted)
        wait()


def wait() -> None:
    """Start an agent once this process uses a device; until then it costs nothing. Calling it once is enough."""
    global _waiting
    if not _waiting and not disabled():
        _waiting = True
        try:
            arrival.when_in_use(_launch)
        except BaseException:  # a signal handler of the program raised it
            _waiting = False
            raise


def stop() -> None:
    """Stop the agent, and do not start one any more."""
    global _waiting
    from . import lifecycle

    _waiting = False
    lifecycle.stop()


def latest() -> ProcessSample | None:
    """The last published sample; None before the first."""
    from . import lifecycle

    return lifecycle.latest()


def disabled() -> bool:
    return os.environ.get("GPUFRAG_DISABLE") == "1"


def _launch(framework: ModuleType) -> None:
    from . import lifecycle

    if _waiting:  # else stopped meanwhile
        lifecycle.launch(framework)
