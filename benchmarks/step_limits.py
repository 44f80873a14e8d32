"""The smallest limit of recorded steps (tests/fixtures/steps): from the heap that the step began with, and packed.

PYTHONPATH=exporter python3 benchmarks/step_limits.py
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import parse
from gpufrag.model.needs import step_run
from gpufrag.model.step import StepEvents
from gpufrag.model.trace.whatif import OWN_HEAP, PACKED, smallest_limit

STEPS = Path(__file__).parents[1] / "tests/fixtures/steps"
MIB = 1 << 20


def main() -> None:
    for path in sorted(STEPS.glob("*.json.gz")):
        raw = json.loads(gzip.decompress(path.read_bytes()))
        heap = parse(raw["snapshot"])
        run = step_run(heap, StepEvents(**raw["events"]), Driver())
        own, packed = (smallest_limit(run, heap.settings, start=start) for start in (OWN_HEAP, PACKED))
        assert own is not None
        assert packed is not None
        difference = packed / own - 1
        print(f"{path.name}: own heap {own // MIB} MiB, packed {packed // MIB} MiB ({difference:+.1%})")


if __name__ == "__main__":
    main()
