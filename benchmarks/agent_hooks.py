"""The small costs of the agent: per step, per second, and at the start of a Python process.

    PYTHONPATH=exporter python3 benchmarks/agent_hooks.py [--out agent_hooks.json]

Needs neither torch nor a GPU. `step` is the hook after an optimizer step that records nothing (it counts steps and
watches for leaks), called by a stand-in for torch. `second` is the CPU time of the agent's thread every second (read,
encode, publish) for a simulated heap with snapshots of two moments, without torch's own part, which agent_pause.py
measures. `shim` is what PYTHONPATH adds to the start of an interpreter. Medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "exporter"), str(ROOT / "tests")]

from fake_torch import Machine, torch_of  # noqa: E402 (the path comes first)
from gpufrag.agent.identity import identify  # noqa: E402
from gpufrag.agent.sampler import Sampler  # noqa: E402
from gpufrag.agent.settings import AgentSettings  # noqa: E402
from gpufrag.agent.torch.source import TorchSource  # noqa: E402
from gpufrag.commands.run import SHIM  # noqa: E402
from gpufrag.demo.source import SimulatedSource  # noqa: E402
from gpufrag.model.allocatable import Driver  # noqa: E402
from gpufrag.model.settings import Settings  # noqa: E402
from gpufrag.model.simulator.allocator import Allocator  # noqa: E402
from gpufrag.wire.error_counter import ErrorCounter  # noqa: E402
from gpufrag.wire.folder import write_file  # noqa: E402
from gpufrag.wire.sample import encode  # noqa: E402

MIB = 1 << 20


def seconds_each(work: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The median over 9 rounds of `times` calls."""
    rounds = []
    for _ in range(9):
        began = clock()
        for _ in range(times):
            work()
        rounds.append((clock() - began) / times)
    return statistics.median(rounds)


def simulated() -> SimulatedSource:
    allocator = Allocator(Settings(), Driver(80 << 30, 80 << 30))
    for size in range(1, 200):
        allocator.malloc(size * MIB // 4)
    return SimulatedSource(allocator, threading.Lock(), "GPU-0", "")


def step_cost() -> float:
    machine, optimizer = Machine(), "optimizer"
    sampler = Sampler(TorchSource(torch_of(machine), ErrorCounter()), AgentSettings(interval=1e6), ErrorCounter())
    sampler.watch_steps(lambda: None)
    sampler.read()
    machine.step(optimizer)  # the first one is due
    return seconds_each(lambda: machine.step(optimizer), 10_000)


def second_cost(source: SimulatedSource) -> float:
    sampler = Sampler(source, AgentSettings(), ErrorCounter())
    sampler.read()
    for moment in ("boundary", "timer"):
        sampler.take(moment)
        sampler.digest()
    identity = identify()
    with tempfile.TemporaryDirectory() as folder:

        def work() -> None:
            sampler.read()
            write_file(Path(folder, "sample.json"), encode(sampler.sample(identity)))

        return seconds_each(work, 100, time.thread_time)


def start_cost() -> float:
    """Over pairs of starts with the shim and without."""
    starts = {True: [], False: []}  # type: dict[bool, list[float]]
    for _ in range(25):
        for shim, found in starts.items():
            environment = {"PYTHONPATH": str(SHIM)} if shim else {}
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
            found.append(time.perf_counter() - began)
    return statistics.median(starts[True]) - statistics.median(starts[False])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    source = simulated()
    found = {"step": step_cost(), "second": second_cost(source), "shim": start_cost()}
    print(
        f"step {found['step'] * 1e6:.2f} us, second {found['second'] * 1e6:.0f} us, shim {found['shim'] * 1e3:.2f} ms"
    )
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
