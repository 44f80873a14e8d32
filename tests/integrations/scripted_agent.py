"""An agent with a scripted sample, for programs without a GPU: `python scripted_agent.py PROGRAM FOLDER`."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path

from fake_agents import process_sample
from gpufrag import agent
from gpufrag.agent import lifecycle
from gpufrag.wire.folder import FileName
from gpufrag.wire.sample import ProcessSample
from helpers import TESTS
from recorded_steps import recorded_step


def sample_at_peak(ooms: int = 2) -> ProcessSample:
    """With a snapshot at the peak, and errors that the program survived."""
    sample = process_sample(0)
    (device,) = sample.devices
    assert device.totals is not None
    totals = replace(device.totals, counters=replace(device.totals.counters, ooms=ooms))
    snapshots = (*device.snapshots, replace(device.snapshots[0], at="peak"))
    return replace(sample, devices=(replace(device, totals=totals, snapshots=snapshots),))


def record(folder: Path, sample: ProcessSample) -> None:
    """Write a recorded step of the sample's process, with a limit of 20 GiB."""
    (folder / FileName.of(sample.identity).recording).write_bytes(recorded_step())


if __name__ == "__main__":
    _, program, place = sys.argv
    sys.path.append(str(TESTS))
    sample = sample_at_peak()
    record(Path(place), sample)
    agent.start = lambda: None  # type: ignore[assignment]
    agent.latest = lambda: sample
    lifecycle.folder = lambda: Path(place)
    sys.argv = sys.argv[1:]
    runpy.run_path(program, run_name="__main__")
