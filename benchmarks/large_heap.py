"""One snapshot of a very large heap, from the training process to the sidecar's figures: time and memory on both sides.

    PYTHONPATH=exporter python3 benchmarks/large_heap.py [--blocks 1000000]
    cd tests; python3 -m fake_cuda run -- python3 ../benchmarks/large_heap.py    # without a GPU

The heap is many small tensors, every other one freed. The agent is the real one. A process as the sidecar's worker
measures its file. Fails if a limit does not hold: the agent's share of wall time, the size of the file, the memory of
the worker and its time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch

from gpufrag.agent import agent as agent_module
from gpufrag.agent.agent import Agent
from gpufrag.agent.settings import AgentSettings
from gpufrag.agent.sources import connect
from gpufrag.sidecar.analysis import MEASURE, MEASURE_TIMEOUT, MEMORY_LIMIT, _Process
from gpufrag.wire import recording
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.folder import FileName

MIB = 1 << 20


def resident(pid: str, line: str) -> int:
    """Return a figure of a process's memory in bytes: VmRSS now, VmHWM at its peak."""
    for text in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if text.startswith(f"{line}:"):
            return int(text.split()[1]) << 10
    raise LookupError(line)


def heap_of(blocks: int) -> list[torch.Tensor]:
    """Small tensors that leave `blocks` blocks: live and free ones by turns."""
    tensors = [torch.empty(1024, dtype=torch.uint8, device="cuda") for _ in range(blocks)]
    return tensors[::2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    options = parser.parse_args()
    agent_module.ANSWER_TIMEOUT = 120.0  # on a busy machine
    held = heap_of(options.blocks)
    with tempfile.TemporaryDirectory() as folder:
        settings = AgentSettings(folder=Path(folder))
        agent = Agent(connect(torch, ErrorCounter()), settings)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins anew
        before = resident("self", "VmRSS")
        agent.start()
        try:
            agent.sample_now()
            peak, kept = (resident("self", line) - before for line in ("VmHWM", "VmRSS"))
            sample = agent.latest
            assert sample is not None
            data = (Path(folder) / FileName.of(sample.identity).heap).read_bytes()
        finally:
            agent.stop()
    window = agent._sampler.schedule.window
    stalls = sample.health.stall_seconds
    worker = _Process(MEASURE, MEASURE_TIMEOUT)
    try:
        answer = worker.ask(data)
        assert worker._process is not None
        worker_peak = resident(str(worker._process.pid), "VmHWM")
    finally:
        worker.close()
    assert answer.error is None, answer.error
    (device,) = answer.devices
    measured = device.snapshots[0].measured
    blocks = sum(pool.active_blocks + pool.inactive_blocks for pool in (measured.small, measured.large))
    figures = {
        "blocks": blocks,
        "snapshot_s": round(stalls["snapshot"] + stalls["wait"], 3),
        "pack_cpu_s": round(stalls["measure"], 3),
        "next_snapshot_s": window,
        "agent_peak_mib": peak // MIB,
        "agent_kept_mib": kept // MIB,
        "file_mib": round(len(data) / MIB, 1),
        "sidecar_cpu_s": round(answer.cpu_seconds, 3),
        "sidecar_peak_mib": worker_peak // MIB,
    }
    print(json.dumps(figures, indent=1))
    assert blocks >= 0.99 * options.blocks
    assert window * settings.budget >= stalls["snapshot"] + stalls["measure"]
    assert len(data) <= recording.MAX_BYTES
    assert worker_peak <= MEMORY_LIMIT
    assert held


if __name__ == "__main__":
    main()
