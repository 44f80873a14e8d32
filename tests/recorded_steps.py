"""Steps recorded on an H200, as the agent's files: `from recorded_steps import recorded_step`."""

from __future__ import annotations

import gzip
import json

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import parse
from gpufrag.model.step import StepEvents
from gpufrag.wire.recording import DeviceRecording, Recording, encode
from helpers import TESTS

GIB = 1 << 30
LIMITED = Driver(free=100 * GIB, size=141 * GIB, limit=20 * GIB)


def recorded_step(name: str = "gpt2-exp-1", driver: Driver = LIMITED) -> bytes:
    """Return the recording of a step from tests/fixtures/steps on device 0."""
    raw = json.loads(gzip.decompress((TESTS / "fixtures/steps" / f"{name}.json.gz").read_bytes()))
    one = DeviceRecording(0, parse(raw["snapshot"]), StepEvents(**raw["events"]), driver)
    return encode(Recording(50.0, 0.5, "2.11.0", (one,)))
