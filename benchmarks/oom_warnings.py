"""Twenty training loops that run out of memory: did the last window before the error already meet an alert's condition?

    PYTHONPATH=exporter python3 benchmarks/oom_warnings.py [--out oom_warnings.json]
    cd tests; PYTHONPATH=../exporter python3 -m fake_cuda run -- python3 ../benchmarks/oom_warnings.py    # no GPU

Five loops, each with two limits and two allocator settings, in processes of their own with an agent. `surge` cannot be
foreseen: its last step is three times as large as any before. A condition is one of

    ratio      free_total / largest_allocatable is above 4, at the boundary or at the peak
    low        margin / limit is below the threshold of GpuMemoryMarginLow
    falling    the margin's trend over the last windows reaches 0 within the horizon of GpuMemoryMarginFalling
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import apart

MIB = 1 << 20
INTERVAL = 0.2
"""Seconds of a window. HORIZON counts windows, so the result does not depend on it."""
HORIZON = 360
"""Windows of 10 s in the alert's hour."""
TREND = 6
"""The latest windows, from which the trend is taken."""
RATIO, LOW = 4.0, 0.05
LIMITS = (2048, 6144)
CONFS = ("", "expandable_segments:True")
MOST_STEPS = 20_000


class Loop:
    """Allocates like a training step. `scale` is the loop's size, in MiB; `held` is what steps keep."""

    def __init__(self, limit: int) -> None:
        import torch

        self.torch, self.scale, self.rng = torch, limit // 64, random.Random(3)
        self.held: list[Any] = []
        self.weight = torch.nn.Parameter(torch.empty(self.scale * MIB // 4, device="cuda"))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)
        self.number = 0

    def take(self, mib: float) -> Any:
        return self.torch.empty(int(mib * MIB), dtype=self.torch.uint8, device="cuda")

    def step(self, kind: str) -> None:
        self.number += 1
        length = 1.0
        if kind == "leak":
            self.held.append(self.take(self.scale / 16))
        elif kind == "longer":
            length = 1 + self.number / 100
        elif kind == "fragments":
            wide = [self.take(self.scale * self.rng.uniform(0.3, 0.7)) for _ in range(4)]
            self.held.append(self.take(self.scale / 16))
            del wide
        elif kind == "cache":
            self.held[:] = [self.take(self.scale * self.number / 20)]
        elif self.number == 150:
            length = 20.0
        activations = [self.take(self.scale * length * self.rng.uniform(0.8, 1.0)) for _ in range(8)]
        self.weight.grad = self.torch.empty_like(self.weight)
        while activations:
            activations.pop()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


KINDS = ("leak", "longer", "fragments", "cache", "surge")


def run_here(kind: str, limit_mib: int) -> dict[str, Any]:
    """Run the loop until it fails; what the last recordings show."""
    import torch

    from gpufrag import agent
    from gpufrag.wire.folder import RECORDING_SUFFIX

    torch.zeros(1, device="cuda")
    torch.cuda.set_per_process_memory_fraction(limit_mib * MIB / torch.cuda.get_device_properties(0).total_memory)
    with tempfile.TemporaryDirectory() as folder:
        agent.start(interval=INTERVAL, budget=1.0, folder=Path(folder))
        loop, seen, files = Loop(limit_mib), 0, []
        try:
            while loop.number < MOST_STEPS:
                loop.step(kind)
                time.sleep(0.005)  # a step of a real job takes time
                for file in Path(folder).glob(f"*{RECORDING_SUFFIX}"):
                    if (changed := file.stat().st_mtime_ns) != seen:
                        seen = changed
                        files.append(file.read_bytes())
        except torch.cuda.OutOfMemoryError:
            pass
        else:
            raise SystemExit(f"{kind} did not run out of memory")
        finally:
            agent.stop()
    return {"steps": loop.number, "windows": len(files), **judge(files[-TREND:])}


def judge(files: list[bytes]) -> dict[str, Any]:
    from gpufrag.model.needs import step_needs
    from gpufrag.wire.measuring import measure_recording
    from gpufrag.wire.recording import decode

    margins, ratio, share = [], 0.0, None
    for file in files:
        recording = decode(file)
        (one,) = recording.devices
        ratios = [shot.measured.ratio for found in measure_recording(recording) for shot in found.snapshots]
        ratio = max((value for value in ratios if value is not None), default=0.0)
        if one.events is None:
            continue
        needs = step_needs(one.device, one.heap, one.events, one.driver)
        if needs.margin is not None and needs.limit:
            margins.append(needs.margin)
            share = needs.margin / needs.limit
    falls = False
    if len(margins) > 1:
        trend = statistics.linear_regression(range(len(margins)), margins)
        falls = trend.slope < 0 and margins[-1] + trend.slope * HORIZON <= 0
    low = share is not None and share < LOW
    return {"ratio": ratio, "share": share, "warned": ratio > RATIO or low or falls, "low": low, "falling": falls}


def run_apart(kind: str, limit: int, conf: str) -> dict[str, Any]:
    done = apart.start(kind, limit, conf, PYTHONWARNINGS="ignore")
    found = {"error": done.stderr[-500:]} if done.returncode else json.loads(done.stdout.splitlines()[-1])
    return {"loop": kind, "limit": limit, "conf": conf, **found}


def main() -> None:
    variants = [(limit, conf) for limit in LIMITS for conf in CONFS]
    rows = apart.main(__doc__, KINDS, variants, run_here, run_apart)
    print(f"warned: {sum(bool(row.get('warned')) for row in rows)} of {len(rows)}")


if __name__ == "__main__":
    main()
