"""A module `torch` for real Python processes: fake_torch's machine, whose CUDA starts with `machine.initialise()`."""

from __future__ import annotations

from pathlib import Path

from helpers import TESTS

SOURCE = """
from fake_torch import Machine, torch_of
machine = Machine(initialised=False, count=1, heaps={})
names = ("cuda", "optim", "_C", "__version__")
globals().update({name: value for name, value in vars(torch_of(machine)).items() if name in names})
import sys
sys.modules["torch.cuda"] = cuda
import colorsys  # torch imports much more after torch.cuda
"""

USES_A_GPU = """
import sys, time, torch
torch.machine.initialise()
agent = sys.modules.get("gpufrag.agent")
deadline = time.monotonic() + 20
while agent and agent.latest() is None and time.monotonic() < deadline: time.sleep(0.005)
print("agent" if agent and agent.latest() else "no agent", flush=True)
"""
"""A program that uses a GPU and prints whether it has an agent by then."""


def torch_path(folder: Path) -> list[str]:
    """What must be on PYTHONPATH for `import torch` to find it; it is made in `folder`."""
    (folder / "torch.py").write_text(SOURCE)
    return [str(folder), str(TESTS)]
