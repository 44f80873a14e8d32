"""A recorded trace, replayed once: what an agent would have sampled, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from ...agent.sources import DeviceReading
from ...model.fragmentation import Fragmentation, measure
from ...model.simulator.allocator import Allocator
from ...model.trace.program import MALLOC, Replay
from ..source import SimulatedSource
from ..traces import Trace, load

STEPS = 40
"""Optimizer steps that the trace is divided into; the trace has none."""
_LOOKS = 8  # snapshots within a step: the fullest is its peak, the emptiest its boundary


@dataclass(frozen=True)
class Frame:
    """The source's reading at the end of a step, and the heap at its boundary and peak."""

    reading: DeviceReading
    boundary: Fragmentation
    peak: Fragmentation
    largest_recurring: int | None


@dataclass(frozen=True)
class Film:
    trace: Trace
    frames: tuple[Frame, ...]


def film(name: str) -> Film:
    """Replay one of demo.traces.NAMES."""
    trace = load(name)
    allocator = Allocator(trace.settings, trace.driver)
    replay = Replay(trace.program, allocator)
    source = SimulatedSource(allocator, Lock(), "", trace.alloc_conf)
    frames, operations = [], trace.program.operations
    for step in range(STEPS):
        looks = []
        for look in range(1, _LOOKS + 1):
            replay.run(until=len(operations) * (step * _LOOKS + look) // (STEPS * _LOOKS))
            looks.append(measure(allocator.heap(), allocator.driver))
        made = operations[len(operations) * step // STEPS : len(operations) * (step + 1) // STEPS]
        frames.append(_frame(source, looks, max([op.size for op in made if op.kind == MALLOC], default=None)))
    return Film(trace, tuple(frames))


def _frame(source: SimulatedSource, looks: list[Fragmentation], largest_recurring: int | None) -> Frame:
    by_use = sorted(looks, key=_active)
    (reading,) = source.read()
    return Frame(reading, by_use[0], by_use[-1], largest_recurring)


def _active(look: Fragmentation) -> int:
    return look.large.active + look.small.active
