"""Smallest limits on a real GPU: does a job run at its predicted limit, and fail 2 MiB below it?

    PYTHONPATH=exporter python3 benchmarks/fit.py [--out fit.json] [--steps 8]

Ten programs (transformers' GPT-2 and Llama, bf16, AdamW; fixed and varying length; default settings and expandable
segments) run without a limit and are recorded: the whole run, and the last step alone. Each then runs in fresh
processes at the predicted limit of the whole run and at 2 MiB less, and (fixed length) at the limit of the last step
plus 2 MiB and minus 2 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

GRID = 2 << 20
PROGRAMS = [
    (model, length, conf, seed)
    for model, seed in (("gpt2", 0), ("llama", 1))
    for length in ("fixed", "varying")
    for conf in ("", "expandable_segments:True")
] + [("gpt2", "varying", "", 2), ("llama", "varying", "", 3)]


def train(model: str, length: str, seed: int, steps: int, limit: int, record: str) -> None:
    """One run in this process. Exit code 3 is an out-of-memory error."""
    import torch
    import transformers

    total = torch.cuda.get_device_properties(0).total_memory
    if limit:
        torch.cuda.set_per_process_memory_fraction((limit + 0.5) / total)
    elif record:
        torch.cuda.memory._record_memory_history(context=None, max_entries=2_000_000)
    transformers.set_seed(seed)
    source = random.Random(seed)
    if model == "gpt2":
        config: Any = transformers.GPT2Config(n_layer=6, n_embd=512, n_head=8, vocab_size=50257)
        network: Any = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            num_hidden_layers=6, hidden_size=512, intermediate_size=1536, num_attention_heads=8, vocab_size=32000
        )
        network = transformers.LlamaForCausalLM(config)
    network = network.cuda()
    optimizer = torch.optim.AdamW(network.parameters())
    try:
        for step in range(steps):
            if record and not limit and step == steps - 1:
                whole = torch.cuda.memory._snapshot()
                torch.cuda.memory._record_memory_history(enabled=None)
                torch.cuda.memory._record_memory_history(context=None, max_entries=2_000_000)
            tokens = torch.randint(0, 32000, (4, 512 if length == "fixed" else source.randint(64, 1000)), device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = network(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        sys.exit(3)
    if record:
        last = torch.cuda.memory._snapshot()
        whole["segments"], whole["device_traces"] = (
            last["segments"],
            [[*early, *late] for early, late in zip(whole["device_traces"], last["device_traces"])],
        )
        peaks = {
            "reserved": torch.cuda.max_memory_reserved(),
            "active": torch.cuda.memory_stats()["active_bytes.all.peak"],
        }
        Path(record).write_bytes(pickle.dumps({"whole": whole, "last": last, "peaks": peaks, "size": total}))


def child(program: tuple[str, str, str, int], steps: int, limit: int = 0, record: str = "") -> int:
    model, length, conf, seed = program
    command = [sys.executable, __file__, "--train", model, length, str(seed), str(steps), str(limit), record]
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    if ended.returncode not in (0, 3):
        raise RuntimeError(ended.stderr[-500:])
    return ended.returncode


def predict(path: str) -> tuple[int | None, int | None, dict[str, int]]:
    """The smallest limits of the whole run and of its last step."""
    from gpufrag.model.allocatable import Driver
    from gpufrag.model.heap import parse
    from gpufrag.model.needs import RECORDED, step_needs
    from gpufrag.model.step import step_events
    from gpufrag.model.trace.events import parse_trace
    from gpufrag.model.trace.whatif import read_run, smallest_limit

    found = pickle.loads(Path(path).read_bytes())  # noqa: S301 (written by this script)
    whole, last = found["whole"], found["last"]
    end = parse(last)
    run = read_run(parse_trace(whole["device_traces"][0]), end, Driver(None, found["size"], None))
    step = step_needs(0, end, step_events(last["device_traces"][0]), Driver(None, found["size"], None))
    return smallest_limit(run, end.settings), step.smallest_limits.get(RECORDED), found["peaks"]


def verify(program: tuple[str, str, str, int], steps: int) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        child(program, steps, record=file.name)
        command = [sys.executable, __file__, "--predict", file.name]
        whole, step, peaks = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    row = {"program": " ".join(map(str, program)), **peaks, "smallest_limit": whole, "step_smallest_limit": step}
    row["runs_at_limit"] = child(program, steps, whole) == 0
    row["fails_2_mib_below"] = child(program, steps, whole - GRID) == 3
    if program[1] == "fixed":
        row["runs_at_step_limit"] = child(program, steps, step + GRID) == 0
        row["fails_below_step_limit"] = child(program, steps, step - GRID) == 3
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="write the figures as JSON to this file")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--train", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument("--predict", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        model, length, seed, steps, limit, record = options.train
        train(model, length, int(seed), int(steps), int(limit), record)
        return 0
    if options.predict:
        print(json.dumps(predict(options.predict)))
        return 0
    rows = []
    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(verify, program, options.steps) for program in PROGRAMS]:
            try:
                rows.append(future.result())
            except (RuntimeError, subprocess.SubprocessError) as error:
                rows.append({"error": str(error)[-500:]})
            print(json.dumps(rows[-1]), flush=True)
            if options.out:
                Path(options.out).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
