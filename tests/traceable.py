"""Whether gdb can trace on this machine; it cannot in a container without CAP_SYS_PTRACE."""

from __future__ import annotations

import os
import shutil

from gpufrag.attach.target import Caller, trace_obstacle


def traceable() -> str | None:
    """Why no process can be attached to here; None where one can."""
    if shutil.which("gdb") is None:
        return "gdb is not installed"
    return trace_obstacle(os.getpid(), Caller.current())
