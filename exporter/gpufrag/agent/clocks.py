"""The agent's view of time, for its user to replace."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clocks:
    """Wall time for what is published, a monotonic one for durations, and this thread's own CPU time; seconds."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.thread_time
    sleep: Callable[[float], None] = time.sleep
