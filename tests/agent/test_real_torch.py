"""Real torch, CPU builds included: launchers, workers and children without a GPU have no agent."""

import importlib.util
import sys
from pathlib import Path

import pytest

from gpufrag.commands.run import SHIM

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

RUN = (sys.executable, "-m", "gpufrag", "run", "--")

SEEN = """
import os, sys, threading, torch
def seen():
    ours = sorted(name for name in sys.modules if name.startswith("gpufrag"))
    threads = [thread.name for thread in threading.enumerate() if "gpufrag" in thread.name]
    return [name for name in ours if name.count(".") > 1], threads
QUIET = (["gpufrag.agent.arrival"], [])
"""


def _prints(scripts, program: str, *command: str) -> list[str]:
    """The lines that a program prints under the shim, sorted."""
    surroundings = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    code, out, err = scripts.end(SEEN + program, *(command or RUN), **surroundings)
    assert code == 0, err
    noted = [line for line in err.splitlines() if "gpufrag" in line]
    assert len(noted) <= 1, err
    assert all("is built without GPU support" in line for line in noted), err
    return sorted(out.splitlines())


def test_torch_import_queues_the_hook(scripts, folder: Path) -> None:
    program = """
from importlib.machinery import SourceFileLoader
waiting = [call for call, _ in torch.cuda._queued_calls if call.__module__ == "gpufrag.agent.arrival"]
finders = [type(finder).__name__ for finder in sys.meta_path if "gpufrag" in type(finder).__module__]
print(len(waiting), type(torch.__spec__.loader) is SourceFileLoader, finders)
print(seen() == QUIET)
"""
    assert _prints(scripts, program) == ["1 True ['ImportWatch']", "True"]
    assert not folder.exists()


def test_torchrun_on_cpu_has_no_agent(scripts, folder: Path) -> None:
    program = """
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
kept = os.environ["PYTHONPATH"].startswith("SHIM")
os.write(1, f"{dist.get_rank()} {total.item():.0f} {seen() == QUIET} {kept}\\n".encode())  # one write: lines stay whole
dist.destroy_process_group()
""".replace("SHIM", str(SHIM))
    torchrun = [
        *RUN,
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--no-python",
    ]
    assert _prints(scripts, program, *torchrun) == ["0 2 True True", "1 2 True True"]
    assert not folder.exists()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers_have_no_agent(scripts, folder: Path, method: str) -> None:
    program = """
class Rows(torch.utils.data.Dataset):
    def __init__(self): self.parent = os.getpid()
    def __len__(self): return 4
    def __getitem__(self, index): return torch.tensor(seen() == QUIET and os.getpid() != self.parent)
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Rows(), num_workers=2, multiprocessing_context="METHOD")
    print([bool(row) for row in loader], seen() == QUIET)
""".replace("METHOD", method)
    assert _prints(scripts, program) == ["[True, True, True, True] True"]
    assert not folder.exists()


ASK = """
from gpufrag.agent.steps import StepCounter
from gpufrag.agent.torch.source import TorchSource
from gpufrag.wire.error_counter import ErrorCounter
errors = ErrorCounter()
source = TorchSource(torch, errors, {})
"""


def test_torch_hook_reports_steps_until_closed(scripts) -> None:
    program = """
steps = StepCounter()
print(source.watch_steps(steps.note))
first, second = (torch.nn.Linear(1, 1) for _ in range(2))
optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (first, second)]
for _ in range(4):
    second(first(torch.ones(1, 1))).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
source.close()
optimizers[0].step()
print(steps.count, errors.counts)
"""
    assert _prints(scripts, ASK + program) == ["4 {}", "True"]


def test_cpu_process_never_initialises_cuda(scripts) -> None:
    program = """
print(list(source.read()), source.capture(), source.history_in_use(), errors.counts, torch.cuda.is_initialized())
"""
    assert _prints(scripts, ASK + program) == ["[] None False {} False"]


def test_restarted_agent_does_not_break_torch_import(scripts) -> None:
    program = """
import gpufrag
gpufrag.stop()
gpufrag.start()
print(torch.ones(2).sum().item())
"""
    code, out, err = scripts.end(program.replace("print", "import torch\nprint"), *RUN, CUDA_VISIBLE_DEVICES="")
    assert (code, out.strip()) == (0, "2.0"), err
