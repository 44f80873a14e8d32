"""Are there alerts before training loops run out of memory, and false alarms in healthy loops?

    PYTHONPATH=exporter python3 benchmarks/oom_warnings.py [--out oom_warnings.json]
    cd tests; PYTHONPATH=../exporter python3 -m fake_cuda run -- python3 ../benchmarks/oom_warnings.py    # no GPU

Five loops that run out of memory and two that do not, each with two limits and two allocator settings. A window stands
for 10 s of the job: ten steps, the last of which the agent's source records. The measured figures of all windows become
series, on which promtool evaluates the rules of gpufrag. Needs promtool on the path. In the result:

    warned   the alerts whose expression was true in the last window before the error, and for how many windows
    firing   those that were firing in that window; for a healthy loop, those that were firing at any time
    pending  for a healthy loop: the alerts that were pending at any time
    margin   the margin's share of the limit: of the first window, the lowest, and of the last window
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import apart

from gpufrag.metrics import names
from gpufrag.metrics.names import AlertName
from gpufrag.mixin import rules
from gpufrag.mixin.config import Config

MIB = 1 << 20
WINDOW, STEPS_PER_WINDOW = 10, 10
"""Seconds in a window, and its steps."""
SURGE_AT, MOST_WINDOWS = 300, 360
LIMITS = (2048, 6144)
CONFS = ("", "expandable_segments:True")
FAILING = ("leak", "longer", "fragments", "cache", "surge")
HEALTHY = ("steady", "varying")
ALERTS = (AlertName.FRAGMENTED, AlertName.MARGIN_LOW, AlertName.MARGIN_FALLING)


class Loop:
    """Allocates like a training step. `scale` is the unit of its sizes, in MiB; `held` is what steps keep.

    leak        every tenth step keeps a block
    longer      the activations grow, as with ever longer sequences
    fragments   every fifth step keeps a small block that was allocated between temporary ones
    cache       a cache is copied into a larger one at each step
    surge       all steps are alike, until one needs ten times as much
    steady      all steps are alike and fill most of the limit
    varying     the activations vary from step to step by a factor of three
    """

    def __init__(self, kind: str, limit: int) -> None:
        import torch

        self.torch, self.kind, self.scale, self.rng = torch, kind, limit // 64, random.Random(3)
        self.held: list[Any] = []
        self.weight, self.number = self.take(self.scale), 0

    def take(self, mib: float) -> Any:
        return self.torch.empty(int(mib * MIB), dtype=self.torch.uint8, device="cuda")

    def step(self) -> None:
        length = self.scale * self.length()
        activations = [self.take(length * self.rng.uniform(0.8, 1.0)) for _ in range(8)]
        if self.kind == "leak" and self.number % 10 == 0:
            self.held.append(self.take(self.scale / 6))
        elif self.kind == "fragments" and self.number % 5 == 0:
            wide = [self.take(self.scale * self.rng.uniform(0.3, 0.7)) for _ in range(4)]
            self.held.append(self.take(self.scale / 16))
            del wide
        elif self.kind == "cache":
            self.held[:] = [self.take(self.scale * self.number / 120)]
        gradient = self.torch.empty_like(self.weight)
        while activations:
            activations.pop()
        del gradient
        self.number += 1

    def length(self) -> float:
        if self.kind == "longer":
            return 1 + self.number / 400
        if self.kind == "surge":
            return 10.0 if self.number == SURGE_AT * STEPS_PER_WINDOW else 1.0
        if self.kind == "steady":
            return 7.2
        return self.rng.uniform(2, 7) if self.kind == "varying" else 1.0


def run_here(kind: str, limit_mib: int) -> dict[str, Any]:
    """Run the loop; return the figures of each window, by series."""
    import torch

    from gpufrag.agent.torch.source import TorchSource
    from gpufrag.wire.error_counter import ErrorCounter

    torch.zeros(1, device="cuda")
    torch.cuda.set_per_process_memory_fraction(limit_mib * MIB / torch.cuda.get_device_properties(0).total_memory)
    source, loop, windows = TorchSource(torch, ErrorCounter()), Loop(kind, limit_mib), []
    failed = False
    try:
        while len(windows) < MOST_WINDOWS:
            for _ in range(STEPS_PER_WINDOW - 1):
                loop.step()
            source.read()
            if (refusal := source.start_recording(100_000)) is not None:
                raise RuntimeError(f"torch does not record: {refusal}")
            loop.step()
            windows.append(figures(source.finish_recording(read=True)))
    except torch.cuda.OutOfMemoryError:
        failed = True
    return {"failed": failed, "steps": loop.number, "windows": windows}


def figures(capture: Any) -> dict[str, int | None]:
    """Return the values of a window's series, as the sidecar exports them."""
    from gpufrag.agent.sampler import driver_at
    from gpufrag.model.needs import step_run
    from gpufrag.model.trace.whatif import OWN_HEAP, smallest_limit
    from gpufrag.wire.measuring import measure_recording
    from gpufrag.wire.recording import DeviceRecording, Recording

    heap, (reading,) = capture.heap().on_device(0), capture.readings
    driver = driver_at(heap, reading, capture.limits.get(0))
    events, limit = capture.events()[0], driver.cap
    one = DeviceRecording(0, heap, events, driver, capture.active_before.get(0))
    (measured,) = measure_recording(Recording(0.0, 1.0, None, (one,)))
    needed = smallest_limit(step_run(heap, events, driver), heap.settings, start=OWN_HEAP)
    margin = None if limit is None or needed is None else limit - needed
    found = {names.LIMIT: limit, names.STEP_SMALLEST_LIMIT: needed, names.STEP_MARGIN: margin}
    for shot in measured.snapshots:
        found[f'{names.FREE_TOTAL}{{at="{shot.at}"}}'] = shot.measured.free_total
        found[f'{names.LARGEST_ALLOCATABLE}{{at="{shot.at}"}}'] = shot.measured.largest_allocatable
    return found


Windows = Sequence[Mapping[str, int | None]]


def evaluate(windows: Windows, expressions: Sequence[str]) -> list[list[tuple[Mapping[str, str], float]]]:
    """Return what each PromQL expression yields at the last window: labels and value of each sample."""
    series = [
        {"series": name, "values": " ".join("_" if (value := row.get(name)) is None else str(value) for row in windows)}
        for name in windows[-1]
    ]
    end = f"{(len(windows) - 1) * WINDOW}s"
    # promtool prints what it finds only where it differs from what is expected, here nothing
    questions = [{"expr": f"({text}) or on () vector(-1)", "eval_time": end} for text in expressions]
    tests = [{"interval": f"{WINDOW}s", "input_series": series, "promql_expr_test": questions}]
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": f"{Config().timing.interval:.0f}s", "tests": tests}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "rules.yaml").write_text(rules.rule_file(Config()))
        Path(folder, "test.json").write_text(json.dumps(document))
        command = ["promtool", "test", "rules", "test.json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    answers = re.findall(r"^ +got: ?(.*)$", done.stdout + done.stderr, re.MULTILINE)
    if len(answers) != len(expressions):
        raise RuntimeError(f"promtool: {(done.stdout + done.stderr)[-1000:]}")
    found = []
    for answer in answers:
        samples = re.findall(r"\{([^}]*)\} ([^\s,]+)", answer)
        read = [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in samples]
        found.append([sample for sample in read if sample[1] != -1])
    return found


def judge(failed: bool, windows: Windows) -> dict[str, Any]:
    every = (rule for group in rules.groups(Config()) for rule in group["rules"])
    expressions = {rule["alert"]: rule["expr"] for rule in every if rule.get("alert") in ALERTS}
    span = f"{len(windows) * WINDOW}s"
    since, firing, whole, *conditions = evaluate(
        windows,
        ["ALERTS_FOR_STATE", 'ALERTS{alertstate="firing"}', f"count_over_time(ALERTS[{span}])"]
        + [expressions[name] for name in ALERTS],
    )
    if not failed:
        states = {(labels["alertname"], labels["alertstate"]) for labels, _ in whole}
        return {state: [name for name in ALERTS if (name, state) in states] for state in ("pending", "firing")}
    began = {labels["alertname"]: value for labels, value in since}
    end = (len(windows) - 1) * WINDOW
    warned = {name: int(end - began.get(name, end)) // WINDOW + 1 for name, found in zip(ALERTS, conditions) if found}
    fires = {labels["alertname"] for labels, _ in firing}
    return {"warned": warned, "firing": [name for name in warned if name in fires]}


def run_apart(kind: str, limit: int, conf: str) -> dict[str, Any]:
    done = apart.start(kind, limit, conf, PYTHONWARNINGS="ignore")
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    found = json.loads(done.stdout.splitlines()[-1])
    windows = found["windows"]
    if found["failed"] is not (kind in FAILING):
        raise RuntimeError(f"{kind}: expected the other outcome at step {found['steps']}")
    shares = [round(row[names.STEP_MARGIN] / row[names.LIMIT], 3) for row in windows]
    row = {"loop": kind, "limit": limit, "conf": conf, "windows": len(windows), "failed": found["failed"]}
    return {**row, "margin": [shares[0], min(shares), shares[-1]], **judge(found["failed"], windows)}


def main() -> None:
    variants = [(limit, conf) for limit in LIMITS for conf in CONFS]
    rows = apart.main(__doc__, FAILING + HEALTHY, variants, run_here, run_apart)
    failed, healthy = ([row for row in rows if row["failed"] is which] for which in (True, False))
    for state in ("warned", "firing"):
        print(f"{state} in the last window: {sum(bool(row[state]) for row in failed)} of {len(failed)}")
    print(f"false alarms: {sum(bool(row['firing']) for row in healthy)} of {len(healthy)}")


if __name__ == "__main__":
    main()
