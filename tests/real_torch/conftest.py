"""Real torch without a GPU: the release comes from the package index, the GPU is tests/fake_cuda."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from fake_cuda import allocator
from fake_cuda.releases import Unavailable

Recordings = dict[str, dict[str, Any]]
Runner = Callable[..., Recordings]


@pytest.fixture(scope="session")
def run_programs() -> Runner:
    """`allocator.run`, which skips the test where torch or a compiler cannot be had."""

    def run(
        release: str, programs: Iterable[str], conf: str = "", settings: Mapping[str, str] | None = None
    ) -> Recordings:
        try:
            return allocator.run(release, programs, conf, settings)
        except Unavailable as why:
            pytest.skip(str(why))

    return run
