"""Tests that need a CUDA build of torch, on a real GPU or over tests/fake_cuda, where kernels do not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


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
