"""Five programs with a known fault, run with torch: does `gpufrag explain` name the right line first?

    PYTHONPATH=exporter python3 benchmarks/explain_programs.py

Needs a CUDA build of torch and a GPU, or tests/fake_cuda: the allocator and its stacks are torch's own there too.
Prints a row per program: the marked line, the line that explain names first, and the finding.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MIB = 1 << 20
MARK = "# culprit"
EXPECTED = {
    "growing_cache": "culprit",
    "dynamic_shapes": "dynamic_shapes",
    "empty_cache": "empty_cache",
    "keeps_losses": "kept_across_steps",
    "late_optimizer": "late_optimizer_state",
}
"""By program: the finding that must name the marked line, or `culprit` for the first culprit."""


def growing_cache(torch, tensor):
    kept = []
    for _ in range(40):
        large = [tensor(8), tensor(8)]
        kept.append(tensor(2))  # culprit
        del large
        kept.append(tensor(30))
    return kept


def dynamic_shapes(torch, tensor):
    kept = []
    for step in range(60):
        size = 12 + step * 37 % 78
        block = tensor(size)  # culprit
        if step % 6 == 0:
            kept.append(tensor(2))
        del block
    return kept


def empty_cache(torch, tensor):
    weights = tensor(40)
    for _ in range(10):
        activations = [tensor(64), tensor(128)]
        del activations
        torch.cuda.empty_cache()
    return weights


def keeps_losses(torch, tensor):
    losses = []
    for _ in range(50):
        activations = tensor(40)
        losses.append(tensor(3))  # culprit
        del activations
    return losses


def late_optimizer(torch, tensor):
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


def child(name: str, path: str) -> None:
    import torch

    def tensor(mebibytes: int):
        return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda").view(torch.float32)

    torch.cuda.memory._record_memory_history(stacks="python", max_entries=1_000_000)
    held = globals()[name](torch, tensor)
    torch.cuda.memory._dump_snapshot(path)
    del held


def explain(path: Path) -> dict:
    command = [sys.executable, "-m", "gpufrag", "explain", str(path), "--json", "--no-whatif"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["devices"][0]


def marked_line(name: str) -> int | None:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    start = lines.index(next(line for line in lines if line.startswith(f"def {name}(")))
    for number, line in enumerate(lines[start:], start + 1):
        if MARK in line:
            return number
        if number > start + 1 and line.startswith("def "):
            return None
    return None


def main() -> int:
    right = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, expected in EXPECTED.items():
            path = Path(folder) / f"{name}.pickle"
            subprocess.run([sys.executable, __file__, name, str(path)], check=True)
            found = explain(path)
            names = [finding["name"] for finding in found["findings"]]
            if expected == "culprit":
                text = " ".join(found["culprits"][0]["stack"]) if found["culprits"] else ""
            else:
                text = next((finding["evidence"] for finding in found["findings"] if finding["name"] == expected), "")
            line = marked_line(name)
            good = bool(text) and (line is None or f"{Path(__file__).name}:{line} " in text)
            right += good
            print(f"{name:<16}{'right' if good else 'WRONG':<7}line {line}  {', '.join(names)}\n    {text}")
    print(f"{right} of {len(EXPECTED)}")
    return int(right < len(EXPECTED))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        child(*sys.argv[1:3])
    else:
        raise SystemExit(main())
