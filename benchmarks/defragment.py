"""Defragment fragmented programs on a real GPU: identical training, ratios, prediction, speed, refusals, faults.

    PYTHONPATH=exporter python3 benchmarks/defragment.py [identical|ratios|speed|refusals|faults ...] [--out FILE]

docs/defragment.md has the figures. `identical` trains twice with the same seeds, once with a defragmentation after
step 20, and compares the loss of 50 further steps and every parameter bit by bit.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import torch

from gpufrag.agent.torch import defragment as mover
from gpufrag.model.fragmentation import measure
from gpufrag.wire.defragmentation import DefragmentOptions

MIB = 1 << 20
GIB = 1 << 30


def reset() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)


def limit_to(size: int) -> None:
    torch.cuda.set_per_process_memory_fraction(size / torch.cuda.get_device_properties(0).total_memory)


def figures() -> dict[str, Any]:
    torch.cuda.synchronize()
    heap, driver = mover.look(torch, 0)
    measured = measure(heap, driver)
    return {"ratio": measured.ratio, "largest": measured.largest_allocatable, "stranded": measured.stranded}


def bisect_largest() -> int:
    """The largest request that really succeeds, to 512 bytes; each try starts with an empty cache."""
    low, high = 0, torch.cuda.get_device_properties(0).total_memory // 512
    while high - low > 1:
        middle = (low + high) // 2
        torch.cuda.empty_cache()
        try:
            block = torch.empty(middle * 512, dtype=torch.uint8, device="cuda")
            del block
            low = middle
        except torch.cuda.OutOfMemoryError:
            high = middle
    torch.cuda.empty_cache()
    return low * 512


# programs that leave a fragmented heap; each returns what it keeps


def scattered(seed: int, size: int, large: tuple[int, int], small: tuple[int, int]) -> list[Any]:
    """Fill `size` with large blocks, free them, and leave one smaller block in each of their segments.

    large, small: least and greatest size of a block in MiB; a large block holds one small one, not two.
    """
    source = random.Random(seed)
    limit_to(size)
    blocks: list[Any] = []
    with contextlib.suppress(torch.cuda.OutOfMemoryError):
        while True:
            blocks.append(torch.empty(source.randint(*large) * MIB, dtype=torch.uint8, device="cuda"))
    count = len(blocks)
    blocks.clear()
    kept = [torch.full((source.randint(*small) * MIB // 4,), float(i), device="cuda") for i in range(count)]
    limit_to(torch.cuda.memory_reserved() + 4 * MIB)
    return kept


def cache(seed: int, size: int, small: int, large: int) -> list[Any]:
    """Entries of varying size; at the limit a sixth of them is evicted at random, as a feature cache does."""
    source = random.Random(seed)
    limit_to(size)
    entries: list[Any] = []
    refused = 0
    while refused < 60:
        wanted = source.randint(small, large) * MIB // 4
        try:
            entries.append(torch.full((wanted,), len(entries), device="cuda"))
        except torch.cuda.OutOfMemoryError:
            refused += 1
            heap, driver = mover.look(torch, 0)
            if refused > 20 and (measure(heap, driver).ratio or 0) > 4:
                break
            for _ in range(max(1, len(entries) // 6)):
                entries.pop(source.randrange(len(entries)))
    return entries


PROGRAMS: dict[str, Callable[[], list[Any]]] = {
    "cache-10g": lambda: cache(1, 10 * GIB, 3, 120),
    "cache-20g": lambda: cache(3, 20 * GIB, 3, 300),
    "cache-6g": lambda: cache(5, 6 * GIB, 3, 80),
    "scattered-2g": lambda: scattered(1, 2 * GIB, (40, 60), (31, 39)),
    "scattered-4g": lambda: scattered(2, 4 * GIB, (40, 60), (31, 39)),
    "scattered-8g": lambda: scattered(3, 8 * GIB, (80, 120), (61, 79)),
    "scattered-16g": lambda: scattered(4, 16 * GIB, (60, 100), (51, 59)),
    "scattered-40g": lambda: scattered(5, 40 * GIB, (100, 160), (81, 99)),
    "scattered-100g": lambda: scattered(6, 100 * GIB, (200, 380), (191, 199)),
    "scattered-small-4g": lambda: scattered(7, 4 * GIB, (12, 18), (10, 11)),
}


def ratios() -> Iterator[dict[str, Any]]:
    for name, program in PROGRAMS.items():
        reset()
        kept = program()
        values = [(float(entry[0]), float(entry[-1])) for entry in kept]
        before = figures()
        result = mover.defragment(torch, 0)
        same = values == [(float(entry[0]), float(entry[-1])) for entry in kept]
        real = bisect_largest()
        yield {"program": name, "before": before, **asdict(result), "bisected": real, "values_kept": same}
        del kept


def pinning(count: int, survivor: int) -> list[Any]:
    """`count` segments of 40 MiB, each pinned by one survivor of `survivor` MiB."""
    large = [torch.empty(40 * MIB, dtype=torch.uint8, device="cuda") for _ in range(count)]
    large.clear()
    return [torch.full((survivor * MIB // 4,), float(index), device="cuda") for index in range(count)]


def speed() -> Iterator[dict[str, Any]]:
    """1 GiB of pinning blocks, with room on the device and through the host; and the same bytes over the link."""
    for way in ("device", "host"):
        reset()
        kept = pinning(49, 21)
        torch.cuda.synchronize()
        if way == "host":
            heap, _ = mover.look(torch, 0)
            limit_to(sum(segment.size for segment in heap.segments) + MIB)
        gc.collect()
        began = time.perf_counter()
        result = mover.defragment(torch, 0)
        seconds = time.perf_counter() - began
        limit_to(130 * GIB)
        data = torch.empty(result.moved_bytes or 1, dtype=torch.uint8, device="cuda")
        other = torch.empty(
            data.numel(), dtype=torch.uint8, **({"device": "cuda"} if way == "device" else {"pin_memory": True})
        )
        other.copy_(data)
        torch.cuda.synchronize()
        began = time.perf_counter()
        other.copy_(data)
        data.copy_(other)
        torch.cuda.synchronize()
        link = time.perf_counter() - began
        yield {"way": way, "seconds_measured": seconds, "seconds_of_the_link": link, **asdict(result)}
        del kept, data, other


def train(kind: str, defragmented: bool) -> tuple[list[float], list[Any], dict[str, Any] | None]:
    torch.manual_seed(0)
    source = random.Random(0)
    torch.use_deterministic_algorithms(True)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True, norm_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(8000, 512), torch.nn.TransformerEncoder(layer, 6), torch.nn.Linear(512, 8000)
    )
    model = model.cuda()
    ema = [parameter.detach().clone() for parameter in model.parameters()] if kind == "ema" else []
    if kind == "sgd":
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    run = torch.compile(model) if kind == "compiled" else model
    accumulation = 4 if kind == "accumulation" else 1
    kept: list[Any] = []
    losses: list[float] = []
    result = None
    for step in range(70):
        for part in range(accumulation):
            tokens = torch.randint(0, 8000, (8, source.choice([64, 96, 128, 200, 256])), device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = run(tokens)
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()) / accumulation
            kept.append(logits[:, :2, :].clone())  # what pins the segments
            loss.backward()
            if kind == "accumulation" and step == 20 and part == 1 and defragmented:
                result = asdict(mover.defragment(torch, 0, DefragmentOptions(verify=True)))
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        for mean, parameter in zip(ema, model.parameters()):
            mean.lerp_(parameter.detach(), 0.01)
        if step == 20 and kind != "accumulation" and defragmented:
            result = asdict(mover.defragment(torch, 0, DefragmentOptions(verify=True)))
    state = [value.detach().cpu() for value in model.parameters()] + [value.cpu() for value in ema]
    return losses, state, result


def trainer(defragmented: bool) -> tuple[list[float], list[Any], dict[str, Any] | None]:
    """transformers' Trainer with GPT-2 and batches of varying length."""
    import transformers

    transformers.set_seed(0)
    torch.use_deterministic_algorithms(True)
    config = transformers.GPT2Config(n_layer=6, n_head=8, n_embd=512, vocab_size=8000)
    model = transformers.GPT2LMHeadModel(config)
    source = random.Random(0)
    data = [
        {"input_ids": [source.randrange(8000) for _ in range(source.choice([64, 128, 256, 400]))]} for _ in range(560)
    ]
    losses: list[float] = []
    results: list[dict[str, Any]] = []

    class Probe(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, arguments: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step == 20 and defragmented:
                results.append(asdict(mover.defragment(torch, 0, DefragmentOptions(verify=True))))

        def on_log(self, arguments: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            losses.append((logs or {}).get("loss", 0.0))

    def collate(rows: list[Any]) -> dict[str, Any]:
        length = max(len(row["input_ids"]) for row in rows)
        ids = torch.tensor([row["input_ids"] + [0] * (length - len(row["input_ids"])) for row in rows])
        return {"input_ids": ids, "labels": ids}

    arguments = transformers.TrainingArguments(
        output_dir="/tmp/defragment",
        max_steps=70,
        per_device_train_batch_size=8,
        bf16=True,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        seed=0,
        data_seed=0,
        remove_unused_columns=False,
    )
    transformers.Trainer(model, arguments, train_dataset=data, data_collator=collate, callbacks=[Probe()]).train()
    return losses, [value.detach().cpu() for value in model.parameters()], results[0] if results else None


def sharded(kind: str, defragmented: bool) -> tuple[list[float], list[Any], dict[str, Any] | None]:
    """DDP or FSDP2 in a process group of one rank."""
    import torch.distributed as dist

    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    source = random.Random(0)
    model: Any = torch.nn.Sequential(
        *(
            torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))
            for _ in range(6)
        )
    ).cuda()
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for part in model:
            fully_shard(part)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept: list[Any] = []
    losses: list[float] = []
    result = None
    for step in range(70):
        data = torch.randn(source.choice([256, 700, 1500, 3000]), 1024, device="cuda")
        out = model(data)
        loss = (out - data).square().mean()
        kept.append(out[:1500].detach().clone())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step == 20 and defragmented:
            result = asdict(mover.defragment(torch, 0, DefragmentOptions(verify=True)))
    values = [getattr(value, "_local_tensor", value).detach().cpu() for value in model.parameters()]
    dist.destroy_process_group()
    return losses, values, result


KINDS: dict[str, Callable[[bool], tuple[list[float], list[Any], dict[str, Any] | None]]] = {
    **{kind: functools.partial(train, kind) for kind in ("adamw", "sgd", "accumulation", "ema", "compiled")},
    "trainer": trainer,
    "ddp": functools.partial(sharded, "ddp"),
    "fsdp2": functools.partial(sharded, "fsdp2"),
}


def in_process(kind: str, defragmented: bool) -> tuple[list[float], list[Any], dict[str, Any] | None]:
    """One training in a fresh interpreter."""
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        command = [sys.executable, __file__, "--train", kind, "--save", file.name, *["--defragment"] * defragmented]
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(f"{kind}: {ended.stderr[-600:]}")
        return torch.load(file.name, weights_only=True)  # type: ignore[no-any-return]


def identical() -> Iterator[dict[str, Any]]:
    """All trainings side by side: they share the GPU, not its results."""
    with ThreadPoolExecutor(12) as pool:
        runs = {
            (kind, name): pool.submit(in_process, kind, name == "defragmented")
            for kind in KINDS
            for name in ("control", "repeated", "defragmented")
        }
        for kind in KINDS:
            try:
                losses, state, _ = runs[kind, "control"].result()
                repeated, again, _ = runs[kind, "repeated"].result()
                moved, other, result = runs[kind, "defragmented"].result()
            except RuntimeError as error:
                yield {"kind": kind, "error": str(error)}
                continue
            yield {
                "kind": kind,
                "control_repeats": losses == repeated and all(map(torch.equal, state, again)),
                "losses_equal": losses == moved,
                "parameters_equal": all(map(torch.equal, state, other)),
                **(result or {}),
            }


def refusal_of(kept: list[Any]) -> dict[str, Any]:
    """Try to defragment; return the reason of the refusal, and whether nothing has moved."""
    pointers = [entry.data_ptr() for entry in kept]
    try:
        mover.defragment(torch, 0)
        reason = "moved"
    except mover.Refused as error:
        reason = error.reason
    return {"reason": reason, "untouched": pointers == [entry.data_ptr() for entry in kept]}


def refusals() -> Iterator[dict[str, Any]]:
    reset()
    kept = pinning(50, 21)
    graph, static = torch.cuda.CUDAGraph(), torch.zeros(MIB, device="cuda")
    with torch.cuda.graph(graph):
        out = static * 2
    yield {"case": "graph", **refusal_of(kept)}
    del graph, out, static, kept
    for case in ("nccl", "ipc"):
        command = [sys.executable, __file__, "--case", case]
        environment = {**os.environ, "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": str(int(case == "nccl"))}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        found = {"error": ended.stderr[-600:]} if ended.returncode else json.loads(ended.stdout.splitlines()[-1])
        yield {"case": case, **found}


def registered_by_nccl() -> dict[str, Any]:
    """NCCL has registered the allocator's segments, as TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK asks for."""
    import torch.distributed as dist

    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
    kept = pinning(50, 21)
    for entry in kept[:2]:
        dist.all_reduce(entry)
    found = refusal_of(kept)
    dist.destroy_process_group()
    return found


def used_by_another_process() -> dict[str, Any]:
    """Another process reads and writes every fifth tensor through CUDA IPC, before and after the move."""
    from torch import multiprocessing

    context = multiprocessing.get_context("spawn")
    kept = pinning(50, 21)
    shared = kept[::5]
    pointers = [entry.data_ptr() for entry in shared]
    ours, theirs = context.Pipe()
    consumer = context.Process(target=add_one_when_told, args=(theirs, shared))
    consumer.start()
    theirs.close()  # if the consumer dies, reading fails instead of waiting
    sums = [ours.recv()]
    result = mover.defragment(torch, 0)
    ours.send("moved")
    sums.append(ours.recv())
    ours.recv()  # it has added
    values = all(bool((entry == index + (index % 5 == 0)).all()) for index, entry in enumerate(kept))
    ours.send("end")
    consumer.join(60)
    return {
        "left": dict(result.left),
        "moved_storages": result.moved_storages,
        "untouched": pointers == [entry.data_ptr() for entry in shared],
        "consumer_reads_right_values": sums == [sum(range(0, 50, 5))] * 2,
        "values_right": values,
        "consumer_exit_code": consumer.exitcode,
    }


def add_one_when_told(pipe: Any, shared: list[Any]) -> None:
    pipe.send(sum(int(entry[-1]) for entry in shared))
    pipe.recv()
    pipe.send(sum(int(entry[-1]) for entry in shared))
    for entry in shared:
        entry.add_(1)
    torch.cuda.synchronize()
    pipe.send("added")
    pipe.recv()


CASES: dict[str, Callable[[], dict[str, Any]]] = {"nccl": registered_by_nccl, "ipc": used_by_another_process}


def faults() -> Iterator[dict[str, Any]]:
    """An allocation fails after each storage of a move of a hundred: every value must still be right."""
    right = 0
    restore = mover._Mover._restore
    for failing in range(100):
        reset()
        kept = pinning(100, 21)
        expected = [float(entry[0]) for entry in kept]
        calls = 0

        def failing_restore(self: Any, move: Any, copy: Any, at: int = failing) -> None:
            nonlocal calls
            calls += 1
            if calls == at + 1:
                raise torch.cuda.OutOfMemoryError("injected")
            restore(self, move, copy)

        mover._Mover._restore = failing_restore  # type: ignore[method-assign]
        try:
            mover.defragment(torch, 0)
            outcome = "moved"
        except mover.Unavailable:
            outcome = "put back"
        finally:
            mover._Mover._restore = restore  # type: ignore[method-assign]
        good = all(bool((entry == value).all()) for entry, value in zip(kept, expected))
        right += good and outcome == "put back"
        del kept
    yield {"faults": 100, "put_back_with_right_values": right}


PARTS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "ratios": ratios,
    "speed": speed,
    "refusals": refusals,
    "faults": faults,
    "identical": identical,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--out", help="write the figures as JSON to this file")
    parser.add_argument("--train", choices=list(KINDS), help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--save", help=argparse.SUPPRESS)
    parser.add_argument("--defragment", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        torch.save(KINDS[options.train](options.defragment), options.save)
        return 0
    if options.case:
        print(json.dumps(CASES[options.case]()))
        return 0
    found: dict[str, list[dict[str, Any]]] = {}
    for part in options.parts or PARTS:
        for row in PARTS[part]():
            found.setdefault(part, []).append(row)
            print(part, json.dumps(row), flush=True)
            if options.out:
                with open(options.out, "w", encoding="utf-8") as file:
                    json.dump(
                        {"torch": torch.__version__, "device": torch.cuda.get_device_name(), **found}, file, indent=1
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
