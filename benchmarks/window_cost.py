"""How long a window keeps a training process's interpreter busy, without the copy itself: before and after measuring
moved to the sidecar. And how long the sidecar computes.

    PYTHONPATH=exporter python3 benchmarks/window_cost.py

Real recorded steps (tests/fixtures/steps). `pack` is what the agent's thread does: parse the snapshot, take the
events' columns, write them as bytes. `measure` is what it did in addition before: the figures of the boundary, the
heap at the peak, and its figures. `needs` are the smallest limits, which the sidecar
computes. CPU milliseconds, medians.
"""

from __future__ import annotations

import gzip
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import parse
from gpufrag.model.needs import step_needs
from gpufrag.model.step import StepEvents, step_events
from gpufrag.wire.measuring import measure_recording
from gpufrag.wire.recording import DeviceRecording, Recording, encode

STEPS = Path(__file__).parents[1] / "tests/fixtures/steps"
RUNS = 25
DRIVER = Driver(100 << 30, 141 << 30, None)


def pack(snapshot: Any, trace: list[dict[str, Any]]) -> Recording:
    one = DeviceRecording(0, parse(snapshot), step_events(trace), DRIVER)
    recording = Recording(0.0, 1.0, "2.11.0", (one,))
    encode(recording)
    return recording


def milliseconds(work: Callable[[], object], runs: int = RUNS) -> float:
    times = []
    for _ in range(runs):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e3


def main() -> None:
    for path in sorted(STEPS.glob("*.json.gz")):
        raw = json.loads(gzip.decompress(path.read_bytes()))
        rows = zip(*StepEvents(**raw["events"]))
        trace = [dict(zip(("action", "addr", "size", "stream"), row)) for row in rows]
        snapshot = raw["snapshot"]
        recording = pack(snapshot, trace)
        blocks = sum(len(segment.sizes) for segment in recording.devices[0].heap.segments)
        packed = milliseconds(lambda: pack(snapshot, trace))  # noqa: B023 (called at once)
        measured = milliseconds(lambda: measure_recording(recording))  # noqa: B023
        one = recording.devices[0]
        needs = milliseconds(lambda: step_needs(0, one.heap, one.events, DRIVER), runs=3)  # noqa: B023
        name = path.name.removesuffix(".json.gz")
        times = f"pack {packed:.1f} ms, measure {measured:.1f} ms, needs {needs:.0f} ms"
        print(f"{name}: {len(trace)} events, {blocks} blocks: {times}")


if __name__ == "__main__":
    main()
