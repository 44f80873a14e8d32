"""Tests that need a CUDA build of torch, on a real GPU or over tests/fake_cuda, where kernels do not run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpufrag.commands.run import PACKAGE

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cuda)
            for category in ("DeprecationWarning", "UserWarning", "FutureWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{category}"))


@pytest.fixture(autouse=True, scope="session")
def cuda_torch() -> Any:
    """Torch, which sees a GPU. Skips everything here otherwise."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU: run with a GPU, or python -m fake_cuda run -- python -m pytest -m cuda")
    return torch


@pytest.fixture(scope="session")
def assert_computed(cuda_torch: Any) -> Callable[[float, float], None]:
    """Compares a result of kernels, where kernels run."""
    kernels_run = cuda_torch.ones(1, device="cuda").item() == 1

    def compare(found: float, expected: float) -> None:
        if kernels_run:
            assert found == expected

    return compare


@pytest.fixture
def run_json(tmp_path: Path) -> Callable[..., Any]:
    """Runs a program that can import gpufrag in a process of its own, and returns the JSON of its last line.

    Its argument is the test's folder. `path` is put in front on PYTHONPATH; an empty variable is removed.
    """

    def run(program: str, path: Path = PACKAGE.parent, **variables: str) -> Any:
        search = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")]))
        settings = {"PYTHONPATH": search, "GPUFRAG_DIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
        environment = {name: text for name, text in {**os.environ, **settings, **variables}.items() if text}
        command = [sys.executable, "-c", program, str(tmp_path)]
        done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=110)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
