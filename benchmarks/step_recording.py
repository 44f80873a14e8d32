"""Recorded steps on a real GPU: is the peak exact, what does a recording cost, and how much slower is the job?

    PYTHONPATH=exporter python3 benchmarks/step_recording.py [--out step_recording.json] [--seconds 230] [--pairs 8]

Coverage: all loops run at the same time for some seconds, each in a process of its own with an agent at default
settings. For every recording, torch's own active_bytes.all.peak between switching on and reading is compared with the
peak computed from the events. Needs transformers for the Trainer loops and timm for the convnet; a loop whose library
is missing is skipped.

Overhead: pairs of eight-second stretches of the same work, with an agent at default settings and without, in
alternating order; a first pair warms up and is dropped. Run it on an idle machine.
`gpu` waits for the GPU, `host` launches small kernels. Printed is the geometric mean of the ratios
of step times (with over without) and its 95 % confidence interval.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from workloads import Decoder

from gpufrag import agent
from gpufrag.agent.agent import Agent
from gpufrag.agent.settings import AgentSettings
from gpufrag.agent.sources import Capture
from gpufrag.agent.torch.source import TorchSource
from gpufrag.errors import BadInput
from gpufrag.model.step import read_step
from gpufrag.wire.error_counter import ErrorCounter

BATCH, ACCUMULATE = 8, 2
GPT2_VOCABULARY, LLAMA_VOCABULARY = 50_257, 32_000
SHARE = 0.25
"""Each loop's limit, as a share of the device, so that all fit side by side."""
SETTLE_STEPS = 5
STRETCH_SECONDS = 8.0
T_95 = {7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201, 15: 2.131, 20: 2.086, 30: 2.042}
"""Student's t for 95 %, both sides, by degrees of freedom."""


class Witness(TorchSource):
    """The agent's own source. It keeps torch's peak of each recording; the peaks are reset at its beginning."""

    def __init__(self) -> None:
        super().__init__(torch, ErrorCounter())
        self.rows: list[dict[str, Any]] = []
        self._on = 0.0

    def start_recording(self, max_events: int) -> str | None:
        began = time.perf_counter()
        refusal = super().start_recording(max_events)
        self._on = time.perf_counter() - began
        torch.cuda.reset_peak_memory_stats()
        return refusal

    def finish_recording(self, read: bool) -> Capture | None:
        true_peak = torch.cuda.memory_stats()["active_bytes.all.peak"]
        began = time.perf_counter()
        capture = super().finish_recording(read)
        took = time.perf_counter() - began
        if capture is not None and capture.events is not None:
            self.rows.append(self._row(capture, true_peak) | {"on_ms": self._on * 1e3, "read_off_ms": took * 1e3})
        return capture

    def _row(self, capture: Capture, true_peak: int) -> dict[str, Any]:
        heap, began = capture.heap(), time.thread_time()
        assert capture.events is not None
        events = capture.events()[0]
        blocks = sum(len(segment.sizes) for segment in heap.segments)
        row = {"true_peak": true_peak, "events": len(events.actions), "blocks": blocks}
        try:
            step = read_step(events, heap.on_device(0))
        except BadInput as error:
            return row | {"peak": None, "error": str(error)[:200]}
        measure_ms = (time.thread_time() - began) * 1e3
        return row | {"peak": step.peak_active, "start": step.start_active, "measure_ms": measure_ms}


@contextmanager
def recorded() -> Iterator[tuple[Witness, Agent]]:
    source = Witness()
    with tempfile.TemporaryDirectory() as folder:
        running = Agent(source, AgentSettings(folder=Path(folder)))
        running.start()
        try:
            yield source, running
        finally:
            running.stop()


def trainer(kind: str, seconds: float, *, varying: bool, steps: int = 1_000_000) -> None:
    """Transformers' Trainer: bf16, gradient accumulation, AdamW, random weights and tokens."""
    import transformers as hf

    if kind == "gpt2":
        vocabulary = GPT2_VOCABULARY
        model: Any = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=vocabulary))
    else:
        vocabulary = LLAMA_VOCABULARY
        config = hf.LlamaConfig(
            vocab_size=vocabulary, hidden_size=1024, intermediate_size=2816, num_hidden_layers=12,
            num_attention_heads=16, num_key_value_heads=16,
        )  # fmt: skip
        model = hf.LlamaForCausalLM(config)

    class Rows(torch.utils.data.IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            rng = random.Random(3)
            while True:
                length = rng.randrange(64, 1000) if varying else 512
                for _ in range(BATCH):
                    tokens = torch.randint(0, vocabulary, (length,))
                    yield {"input_ids": tokens, "labels": tokens}

    end = time.perf_counter() + seconds

    class Stop(hf.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, arguments: Any, state: Any, control: Any, **more: Any) -> None:
            control.should_training_stop |= time.perf_counter() > end

    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        arguments = hf.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATE, bf16=True,
            max_steps=steps, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        hf.Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[Stop()]).train()


def convnet(seconds: float) -> None:
    import timm

    model = timm.create_model("resnet50", pretrained=False).cuda()
    optimizer, rng = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), random.Random(5)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        side = rng.randrange(128, 321, 32)
        model(torch.randn(32, 3, side, side, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def generate(seconds: float) -> None:
    """No optimizer steps: a KV cache that grows by concatenation, request after request."""
    rng, end = random.Random(7), time.perf_counter() + seconds
    weights = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        while time.perf_counter() < end:
            caches = [torch.randn(rng.randrange(1, 9), 64, 4096, device="cuda", dtype=torch.bfloat16)] * 8
            for _ in range(rng.randrange(20, 200)):
                for layer, cache in enumerate(caches):
                    new = cache[:, -1:] @ weights
                    caches[layer] = torch.cat((cache, new), dim=1)


def decoder(seconds: float) -> None:
    model = Decoder(width=1152, layers=8).to("cuda", torch.bfloat16)
    optimizer, rng = torch.optim.AdamW(model.parameters(), lr=1e-5), random.Random(11)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        tokens = torch.randint(0, 16_000, (rng.randrange(4, 17), rng.randrange(64, 512)), device="cuda")
        model.loss(tokens).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def compiled(seconds: float, mode: str) -> None:
    """A decoder under torch.compile, at one batch shape; `reduce-overhead` replays CUDA graphs."""
    model = Decoder(width=1152, layers=8).to("cuda", torch.bfloat16)
    optimizer, run = torch.optim.AdamW(model.parameters(), lr=1e-5), torch.compile(model.loss, mode=mode)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        torch.compiler.cudagraph_mark_step_begin()
        run(torch.randint(0, 16_000, (8, 384), device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


LOOPS: dict[str, Callable[[float], None]] = {
    "gpt2-varying": lambda seconds: trainer("gpt2", seconds, varying=True),
    "gpt2-fixed": lambda seconds: trainer("gpt2", seconds, varying=False),
    "llama-varying": lambda seconds: trainer("llama", seconds, varying=True),
    "llama-fixed": lambda seconds: trainer("llama", seconds, varying=False),
    "resnet-varying": convnet,
    "decoder-varying": decoder,
    "generate": generate,
    "compile-default": lambda seconds: compiled(seconds, "default"),
    "compile-reduce-overhead": lambda seconds: compiled(seconds, "reduce-overhead"),
}


def coverage(name: str, seconds: float) -> dict[str, Any]:
    torch.cuda.set_per_process_memory_fraction(SHARE)
    began = time.perf_counter()
    with recorded() as (source, running):
        try:
            LOOPS[name](seconds)
        except ImportError as error:
            return {"loop": name, "skipped": str(error)}
        took, latest = time.perf_counter() - began, running.latest
    rows = source.rows
    exact = sum(row["peak"] == row["true_peak"] for row in rows)
    differences = Counter(row["peak"] - row["true_peak"] for row in rows if row["peak"] not in (None, row["true_peak"]))
    return {
        "loop": name,
        "seconds": round(took),
        "recordings": len(rows),
        "exact": exact,
        "differences": dict(differences),
        "errors": [row["error"] for row in rows if row["peak"] is None][:5],
        **{
            key: statistics.median(row[key] for row in rows if key in row) if rows else None
            for key in ("events", "blocks", "on_ms", "read_off_ms", "measure_ms", "true_peak")
        },
        "read_off_ms_max": max((row["read_off_ms"] for row in rows), default=None),
        "results": latest.health.recordings if latest else {},
        "agent": latest.health.errors if latest else {},
    }


def coverage_apart(name: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--coverage", name, "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"loop": name, "error": done.stderr[-500:]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


class GpuBound:
    def __init__(self) -> None:
        self.model = Decoder(width=2304, layers=12).to("cuda", torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.shape = (8, 33), (64, 512)

    def seconds_per_step(self, steps: int) -> float:
        """The same batches every time."""
        rng = random.Random(7)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            tokens = torch.randint(0, 16_000, [rng.randrange(*bounds) for bounds in self.shape], device="cuda")
            self.model.loss(tokens).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / steps


class HostBound(GpuBound):
    """Small kernels: the host decides how long a step takes."""

    def __init__(self) -> None:
        self.model = Decoder(width=144, layers=24).to("cuda", torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.shape = (2, 5), (16, 64)


def interval(values: list[float]) -> tuple[float, float, float]:
    """(low, mean, high) of the mean, 95 %; rather too wide where T_95 lacks the degrees of freedom."""
    mean, degrees = statistics.fmean(values), len(values) - 1
    factor = T_95[max(each for each in T_95 if each <= degrees)]
    half = factor * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean, mean + half


def overhead(name: str, loop: GpuBound, pairs: int) -> dict[str, Any]:
    loop.seconds_per_step(SETTLE_STEPS)
    steps = max(1, round(STRETCH_SECONDS / loop.seconds_per_step(20)))
    ratios, recordings = [], 0
    for number in range(-1, pairs):
        times = {}
        for with_agent in (number % 2 == 0, number % 2 == 1):
            agent.start() if with_agent else agent.stop()
            loop.seconds_per_step(SETTLE_STEPS)  # starting and stopping are no part of a step
            times[with_agent] = loop.seconds_per_step(steps)
            if with_agent and number >= 0 and (latest := agent.latest()):
                recordings += latest.health.recordings.get("recorded", 0)
            agent.stop()
        if number >= 0:
            ratios.append(times[True] / times[False])
    low, middle, high = (math.exp(value) for value in interval([math.log(ratio) for ratio in ratios]))
    return {
        "loop": name,
        "steps": steps,
        "recordings": recordings,
        "ratio": middle,
        "low": low,
        "high": high,
        "ratios": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=230.0, help="of each loop of the coverage; 0: none")
    parser.add_argument("--loops", nargs="*", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--pairs", type=int, default=8, choices=[0, *(degrees + 1 for degrees in T_95)])
    parser.add_argument("--coverage", choices=LOOPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.coverage:
        print(json.dumps(coverage(options.coverage, options.seconds)))
        return
    found: dict[str, Any] = {"torch": torch.__version__, "coverage": [], "overhead": []}

    def keep(kind: str, row: dict[str, Any]) -> None:
        found[kind].append(row)
        print({key: value for key, value in row.items() if key not in ("agent", "ratios")}, flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1))

    with ThreadPoolExecutor(len(LOOPS)) as pool:
        for row in pool.map(
            lambda name: coverage_apart(name, options.seconds), options.loops if options.seconds else []
        ):
            keep("coverage", row)
    for name, kind in (("gpu", GpuBound), ("host", HostBound)) if options.pairs else ():
        keep("overhead", overhead(name, kind(), options.pairs))


if __name__ == "__main__":
    main()
