"""What only real torch can tell: that its names are where we look for them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here"),
]


def test_the_step_hook_of_real_torch_is_found_and_let_go() -> None:
    command = [sys.executable, "-W", "ignore", str(PROGRAMS / "count_steps.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "2", done.stderr
