"""Five programs with a known fault, run with torch: does `gpufrag explain` name the right line first?

    PYTHONPATH=exporter python3 benchmarks/explain_programs.py

Needs a CUDA build of torch and a GPU, or tests/fake_cuda: the allocator and its stacks are torch's own there too.
Prints for each program the marked line, what explain finds and the line it names. If a setting lowers the peak of
reserved memory, it also prints the predicted peak and that of a run under the setting. If the first advice is a change
of the code that lowers the memory in use, it also prints what it saves by explain's prediction, and in a run with that
change. Exits with 1 if a line is wrong or a prediction is off by more than 10 %.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

MIB = 1 << 20
MARK = "# culprit"
CHILD = "--child"
MOST_ERROR = 0.1
EXPECTED = {
    "growing_cache": "culprit",
    "dynamic_shapes": "dynamic_shapes",
    "empty_cache": "empty_cache",
    "keeps_losses": "kept_across_steps",
    "late_optimizer": "late_optimizer_state",
}
"""By program: the finding that must name the marked line, or `culprit` for the first culprit."""


def growing_cache(torch, tensor, changed):
    kept = []
    for _ in range(40):
        large = [tensor(8), tensor(8)]
        kept.append(tensor(2))  # culprit
        del large
        entry = tensor(30)
        if not changed:
            kept.append(entry)
    return kept


def dynamic_shapes(torch, tensor, changed):
    kept = []
    for step in range(60):
        size = 12 + step * 37 % 78
        block = tensor(size)  # culprit
        if step % 6 == 0:
            kept.append(tensor(2))
        del block
    return kept


def empty_cache(torch, tensor, changed):
    weights = tensor(40)
    for _ in range(10):
        activations = [tensor(64)] if changed else [tensor(64), tensor(128)]
        del activations
        torch.cuda.empty_cache()
    return weights


def keeps_losses(torch, tensor, changed):
    losses = []
    for _ in range(50):
        activations = tensor(40)
        losses.append(tensor(3))  # culprit
        if changed:
            losses.clear()
        del activations
    return losses


def late_optimizer(torch, tensor, changed):
    weights = [torch.nn.Parameter(tensor(20)) for _ in range(10)]
    optimizer = torch.optim.AdamW(weights, fused=False, foreach=False)
    for step in range(12):
        activations = [tensor(24) for _ in range(4)]
        del activations[::2]
        if step >= 3:
            for weight in weights:
                weight.grad = torch.empty_like(weight)
            optimizer.step()  # culprit
            optimizer.zero_grad(set_to_none=True)
        del activations
    return optimizer


def child(name: str, path: str, changed: bool) -> None:
    """Print the peaks of reserved and allocated memory; with a path, dump a snapshot with history there.

    changed: whether the code follows explain's first advice.
    """
    import torch

    def tensor(mebibytes: int):
        return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda").view(torch.float32)

    if path:
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=1_000_000)
    held = globals()[name](torch, tensor, changed)
    if path:
        torch.cuda.memory._dump_snapshot(path)
    print(torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated())
    del held


def run(name: str, path: str = "", conf: str = "", changed: bool = False) -> tuple[int, int]:
    """Return the program's peaks of reserved and allocated memory, in bytes."""
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf}
    command = [sys.executable, __file__, CHILD, name, path, *["changed"] * changed]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    reserved, allocated = done.stdout.split()[-2:]
    return int(reserved), int(allocated)


def explain(path: Path) -> dict:
    command = [sys.executable, "-m", "gpufrag", "explain", str(path), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["devices"][0]


def line_of(name: str) -> int | None:
    """Return the number of the program's marked line; None if it has none."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"def {name}("))
    body = itertools.takewhile(lambda row: not row[1].startswith("def "), enumerate(lines[start + 1 :], start + 2))
    return next((number for number, line in body if line.endswith(MARK)), None)


def named_first(name: str, found: dict) -> str:
    """Return the text that must name the marked line: of the first culprit, or of the program's finding."""
    if EXPECTED[name] == "culprit":
        return " ".join(found["culprits"][0]["stack"]) if found["culprits"] else ""
    return next((finding["evidence"] for finding in found["findings"] if finding["name"] == EXPECTED[name]), "")


def is_right(name: str, found: dict) -> bool:
    text, line = named_first(name, found), line_of(name)
    return bool(text) and (line is None or f"{Path(__file__).name}:{line} " in text)


def without_paths(snapshot: dict) -> dict:
    """Return the snapshot with this machine's folders replaced."""
    seen = set()
    entries = [entry for trace in snapshot["device_traces"] for entry in trace]
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    for holder in (*entries, *blocks, *snapshot["segments"]):
        for frame in holder.get("frames") or ():
            if id(frame) not in seen:
                seen.add(id(frame))
                folder, _, rest = frame["filename"].rpartition("/torch/")
                name = f"/opt/torch/{rest}" if folder else f"/job/{Path(frame['filename']).name}"
                frame["filename"] = name
    return snapshot


def report(name: str, folder: Path, save: Path | None) -> bool:
    path = folder / f"{name}.pickle"
    peak, allocated = run(name, str(path))
    found = explain(path)
    good = is_right(name, found)
    rules = ", ".join(finding["name"] for finding in found["findings"])
    print(f"{name:<16}{'right' if good else 'WRONG':<7}line {line_of(name)}  {rules}\n    {named_first(name, found)}")
    tried = [setting for setting in found["settings"] if not setting["anchor"]]
    best = max(tried, key=lambda setting: setting["saves"], default=None)
    if best is not None and best["saves"] > 0:
        predicted, measured = peak - best["saves"], run(name, conf=best["conf"])[0]
        print(
            f"    {best['conf']}: peak {peak / MIB:.0f} MiB, predicted {predicted / MIB:.0f}, is {measured / MIB:.0f}"
        )
        good = good and abs(predicted - measured) <= MOST_ERROR * measured
    advice = found["advice"][0]
    if advice["what"] == "less in use":
        saves = allocated - run(name, changed=True)[1]
        print(
            f"    code: predicted {advice['gain'] / MIB:.0f} MiB less in use, is {saves / MIB:.0f}: {advice['change']}"
        )
        good = good and abs(advice["gain"] - saves) <= MOST_ERROR * saves
    if save is not None:
        data = pickle.dumps(without_paths(pickle.loads(path.read_bytes())), 4)  # noqa: S301 (our own)
        (save / f"{name}.pickle.gz").write_bytes(gzip.compress(data, mtime=0))
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=list(EXPECTED), help="default: all")
    parser.add_argument("--save", type=Path, help="folder for the snapshots (tests/fixtures/programs)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        right = [report(name, Path(folder), options.save) for name in options.programs]
    print(f"{sum(right)} of {len(right)}")
    return int(not all(right))


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child(*sys.argv[2:4], changed=len(sys.argv) > 4)
    else:
        raise SystemExit(main())
