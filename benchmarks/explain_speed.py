"""How long `gpufrag explain` takes, next to other analysers: 12,000, 100,000 and 1,000,000 events.

    PYTHONPATH=exporter:tests python3 benchmarks/explain_speed.py [--events 12000 100000 1000000] [--repeats 3]

Records a training-like program on the simulated allocator in torch's form, with stacks of six frames, then runs each
program on the same file in a process of its own: `explain` (settings are not replayed), `explain --html`, and
`python -m torch.cuda._memory_viz trace_plot`, if torch is installed. Prints the best CPU time of the repeats, and the
largest peak memory.

Other programs: --program NAME='COMMAND {file}'. docs/explain.md has figures of these:

    pt-snap 0.4.1, from PyPI: --program pt-snap='pt-snap import --force --no-focus -o {out}.db {file}'
    mosaic: no package is published, and pip cannot build its repository at commit 67b27bb (setup.py names folders that
    do not exist), so it runs from the source tree with PYTHONPATH:
    --program mosaic='python -m mosaic.cmd.get_memory_usage_peak --snapshot {file}' (stacks at the peak) and
    --program mosaic-html='python -m mosaic.cmd.get_memory_profile --snapshot {file} --out-path {out}' (a chart)
"""

from __future__ import annotations

import argparse
import functools
import os
import pickle
import random
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from staged_programs import MIB, Process

GPUFRAG = f"{sys.executable} -m gpufrag"
PROGRAMS = {
    "explain": f"{GPUFRAG} explain {{file}} --no-whatif",
    "explain --html": f"{GPUFRAG} explain {{file}} --no-whatif --html {{out}}",
}
TORCH = f"{sys.executable} -m torch.cuda._memory_viz trace_plot {{file}} -o {{out}}"
SIZES = (512, 4096, 70_000, 300_000, 2 * MIB, 9 * MIB, 30 * MIB)


@functools.cache
def frames(line: int) -> list[dict[str, Any]]:
    """A stack of six frames; torch shares the frames of equal stacks too."""
    own = [("train.py", 100 + line % 7, "main"), ("model.py", 20 + line % 50, "forward"), ("block.py", line, "forward")]
    torch = {"filename": "/env/site-packages/torch/nn/modules/module.py", "line": 1790, "name": "_call_impl"}
    found = [{"filename": f"/job/{file}", "line": number, "name": name} for file, number, name in reversed(own)]
    return [torch, found[0], torch, found[1], torch, found[2]]


def record(events: int) -> dict[str, Any]:
    """A program of steps: weights that stay, activations of varying size that go."""
    chance, process = random.Random(events), Process()
    for line in range(200):
        process.malloc(chance.choice(SIZES[4:]), line, frames=frames(line))
    while len(process.allocator.trace) < events:
        live = [process.malloc(chance.choice(SIZES), line, frames=frames(line)) for line in range(300, 700)]
        chance.shuffle(live)
        process.free(*live)
    snapshot = process.snapshot()
    for segment in snapshot["segments"]:  # keys of torch that gpufrag does not need
        live = [block for block in segment["blocks"] if block["state"] != "inactive"]
        sizes = sum(block["size"] for block in live), sum(block["requested_size"] for block in live)
        segment |= {"allocated_size": sizes[0], "active_size": sizes[0], "requested_size": sizes[1], "frames": []}
    snapshot["device_traces"] = [list(as_torch(snapshot["device_traces"][0]))]
    return snapshot


def as_torch(trace: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the entries as torch writes them: more texts, and a list of (shared) frames per allocation."""
    stacks: dict[int, list[Any]] = {}
    for entry in trace:
        if entry["action"] == "alloc":
            stacks[entry["addr"]] = list(entry["frames"])
        texts = {"compile_context": "".join(("N", "/A")), "user_metadata": ""}
        time = (1 << 50) + entry["time_us"]
        yield {**entry, "time_us": time, **texts, "frames": stacks.get(entry["addr"], entry["frames"])}


def write(file: Path, events: int) -> int:
    snapshot = record(events)
    file.write_bytes(pickle.dumps(snapshot, 4))
    return len(snapshot["device_traces"][0])


def measure(command: str, file: Path, out: Path) -> tuple[float, float]:
    """Return CPU seconds and peak memory in MB. Raises CalledProcessError."""
    words = shlex.split(command.format(file=shlex.quote(str(file)), out=shlex.quote(str(out))))
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words, stderr=errors.decode(errors="replace")[-300:])
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="+", default=[12_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--program", action="append", default=[], metavar="NAME=COMMAND")
    options = parser.parse_args()
    programs = dict(PROGRAMS)
    if find_spec("torch") is None:
        print("torch is not installed: its viewer is not measured")
    else:
        programs["torch trace_plot"] = TORCH
    programs |= dict(each.split("=", 1) for each in options.program)
    print(f"{'program':<20}{'events':>12}{'file MB':>10}{'CPU s':>8}{'peak MB':>10}{'output MB':>11}")
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "snapshot.pickle", Path(folder) / "out.html"
        for events in options.events:
            with ProcessPoolExecutor(1) as pool:  # a peak includes that of the starting process
                count = pool.submit(write, file, events).result()
            for name, command in programs.items():
                out.unlink(missing_ok=True)
                runs = [measure(command, file, out) for _ in range(options.repeats)]
                seconds, memory = min(run[0] for run in runs), max(run[1] for run in runs)
                size = f"{out.stat().st_size / 1e6:.1f}" if out.exists() else ""
                print(
                    f"{name:<20}{count:>12,}{file.stat().st_size / 1e6:>10.1f}{seconds:>8.2f}{memory:>10.0f}{size:>11}"
                )


if __name__ == "__main__":
    main()
