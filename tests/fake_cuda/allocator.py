"""Runs programs of allocations on the allocator of a torch release. The instructions are in csrc/harness.cpp."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .build import harness


class ProgramFailed(Exception):
    """The allocator, or an instruction, ended a program with an error that is not out-of-memory."""


def run(
    release: str, programs: Iterable[str], conf: str = "", settings: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return what the allocator recorded of each program, by its name, in the form of tests/golden.

    `conf` is PYTORCH_CUDA_ALLOC_CONF, `settings` are FAKE_CUDA_* variables. The results have these keys in addition:
    `largest` and `tried` (one result for each instruction of that name), and `calls` ([trace events, retries, stream
    synchronizations] after each instruction). Raises ProgramFailed, and Unavailable where torch or a compiler cannot
    be had.
    """
    program = harness(release)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTORCH_", "FAKE_CUDA_"))}
    environment |= {"PYTORCH_CUDA_ALLOC_CONF": conf, **(settings or {})}
    with tempfile.TemporaryDirectory(prefix="fake-cuda-") as folder:
        text = "\n".join(programs)
        done = subprocess.run([program, folder], input=text, text=True, capture_output=True, env=environment)
        if done.returncode:
            raise ProgramFailed(f"torch {release}, {conf or 'no setting'}: {done.stderr.strip()[-1000:]}")
        return {path.stem: json.loads(path.read_text()) for path in Path(folder).glob("*.json")}
