"""Is the smallest limit of a recorded step right? Ten training loops, each in processes of its own.

    PYTHONPATH=exporter python3 benchmarks/margin.py [--out margin.json]
    cd tests; PYTHONPATH=../exporter python3 -m fake_cuda run -- python3 ../benchmarks/margin.py    # without a GPU

Each loop runs without a limit, and the agent's source records its last step. The smallest limit of that step is
computed from the heap at its beginning, and for comparison from the same blocks packed without gaps. Then the loop
runs again in fresh processes. At the beginning of the same step, each releases its cached segments if they exceed the
limit, and sets the limit: the smallest one, with which the step should succeed, and 2 MiB less, with which it should
run out of memory.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import apart

GRID = 2 << 20
STEPS = 12
CONFS = ("", "expandable_segments:True")
OUT_OF_MEMORY = 3
LOOPS = ("decoder-fixed", "decoder-varying", "accumulate", "vision", "two-models")


def steps_of(name: str) -> Iterator[None]:
    """Yields after each optimizer step."""
    import torch
    from workloads import Decoder, Pyramid

    rng = random.Random(7)
    if name == "vision":
        network: torch.nn.Module = Pyramid().to("cuda")
    else:
        network = Decoder(width=576, layers=6).to("cuda")
    other = Decoder(width=384, layers=4).to("cuda") if name == "two-models" else None
    models = [network] if other is None else [network, other]
    optimizer = torch.optim.AdamW([parameter for model in models for parameter in model.parameters()])

    def loss() -> torch.Tensor:
        if name == "vision":
            side = rng.randrange(6, 16) * 32
            return network(torch.randn(rng.randrange(2, 9), 3, side, side, device="cuda")).square().mean()
        shape = (4, 384) if name == "decoder-fixed" else (rng.randrange(2, 9), rng.randrange(64, 512))
        tokens = torch.randint(0, 16_000, shape, device="cuda")
        return sum((model.loss(tokens) for model in models), torch.zeros((), device="cuda"))

    while True:
        for _ in range(3 if name == "accumulate" else 1):
            loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def run_here(name: str, limit: int) -> dict[str, int] | None:
    """Run the loop; without a limit, return the figures of its last step."""
    import torch

    torch.zeros(1, device="cuda")
    steps = steps_of(name)
    for _ in range(STEPS - 1):
        next(steps)
    if not limit:
        return recorded(lambda: next(steps))
    if torch.cuda.memory_reserved() > limit:
        torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((limit + 0.5) / torch.cuda.get_device_properties(0).total_memory)
    try:
        next(steps)
    except torch.cuda.OutOfMemoryError:
        sys.exit(OUT_OF_MEMORY)
    return None


def recorded(step: Callable[[], None]) -> dict[str, int]:
    import torch

    from gpufrag.agent.torch.source import TorchSource
    from gpufrag.model.allocatable import Driver
    from gpufrag.model.needs import step_run
    from gpufrag.model.trace.whatif import smallest_limit
    from gpufrag.wire.error_counter import ErrorCounter

    source = TorchSource(torch, ErrorCounter())
    source.read()
    if (refusal := source.start_recording(100_000)) is not None:
        raise RuntimeError(f"torch does not record: {refusal}")
    step()
    capture = source.finish_recording(read=True)
    assert capture is not None
    assert capture.events is not None
    heap, events = capture.heap().on_device(0), capture.events()[0]
    run = step_run(heap, events, Driver(None, torch.cuda.get_device_properties(0).total_memory, None))
    limit, packed = (smallest_limit(run, heap.settings, packed=packed) for packed in (False, True))
    assert limit is not None
    assert packed is not None
    return {
        "events": len(events.actions),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "smallest_limit": limit,
        "packed": packed,
    }


def run_apart(name: str, conf: str, limit: int = 0) -> Any:
    """The figures of a run without a limit; whether a run with one succeeds."""
    done = apart.start(name, limit, conf, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    if done.returncode not in (0, OUT_OF_MEMORY):
        raise RuntimeError(done.stderr[-500:])
    return done.returncode == 0 if limit else json.loads(done.stdout.splitlines()[-1])


def verify(name: str, conf: str) -> dict[str, Any]:
    row = {"loop": name, "conf": conf, **run_apart(name, conf)}
    row["succeeds"] = run_apart(name, conf, row["smallest_limit"])
    row["fails_2_mib_below"] = not run_apart(name, conf, row["smallest_limit"] - GRID)
    return row


def main() -> None:
    rows = apart.main(__doc__, LOOPS, [(conf,) for conf in CONFS], run_here, verify)
    for key in ("succeeds", "fails_2_mib_below"):
        print(f"{key}: {sum(row[key] for row in rows)} of {len(rows)}")


if __name__ == "__main__":
    main()
