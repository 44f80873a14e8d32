"""An agent whose copies of the heap are kept, with what the benchmark was doing at each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from gpufrag.agent.agent import Agent
from gpufrag.agent.peak import Level
from gpufrag.agent.sampler import driver_at
from gpufrag.agent.settings import AgentSettings
from gpufrag.agent.sources import Capture
from gpufrag.agent.torch.source import TorchSource
from gpufrag.model.fragmentation import Fragmentation, measure
from gpufrag.wire.error_counter import ErrorCounter

DEVICE = 0
WINDOW = 10.0 * 0.001
"""Seconds that a window may cost at default settings."""


class Copy(NamedTuple):
    at: str
    step: int
    capture: Capture


class Witness(TorchSource):
    """The agent's own source; it remembers every copy and at which step of the benchmark it was made."""

    def __init__(self) -> None:
        super().__init__(torch, ErrorCounter())
        self.step = 0
        self.copies: list[Copy] = []
        self._trainer = threading.get_ident()
        self._looked_at = 0.0

    def level(self, device: int) -> Level | None:
        found = super().level(device)
        self._looked_at = time.perf_counter()
        return found

    def capture(self) -> Capture | None:
        looked = time.perf_counter() - self._looked_at < 0.0005  # only a copy at a peak follows a look at once
        at = "boundary" if threading.get_ident() == self._trainer else "peak" if looked else "timer"
        step, capture = self.step, super().capture()
        if capture is not None and capture.readings:
            self.copies.append(Copy(at, step, capture))
        return capture


@contextmanager
def agent_of(interval: float) -> Iterator[tuple[Witness, Agent]]:
    source = Witness()
    agent = Agent(source, AgentSettings(interval=interval, budget=min(1.0, WINDOW / interval)))
    agent.start()
    try:
        yield source, agent
    finally:
        agent.stop()


def measured(capture: Capture) -> Fragmentation:
    heap = capture.heap().on_device(DEVICE)
    reading = next(reading for reading in capture.readings if reading.device == DEVICE)
    return measure(heap, driver_at(heap, reading, capture.limits.get(DEVICE)))
