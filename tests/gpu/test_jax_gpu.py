"""JAX on a real GPU: the agent reports JAX's figures without initialising or preallocating anything."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("jax") is None, reason="no JAX on this machine"),
]
PATIENCE = 300
UNTIL = """
import time
from gpufrag import agent
def until(condition):
    deadline = time.monotonic() + 60
    while not (agent.latest() and condition(agent.latest())):
        assert time.monotonic() < deadline, agent.latest()
        time.sleep(0.02)
    return agent.latest()
"""
READS = (
    UNTIL
    + """
import json, sys
from dataclasses import asdict
import jax, jax.numpy as jnp
assert agent.latest() is None
kept = jnp.ones((4096, 4096)).block_until_ready()
device = jax.local_devices()[0]
if device.platform != "gpu":
    print(json.dumps({"skip": "this JAX has no GPU backend"})); sys.exit()
stats = device.memory_stats()
sample = until(lambda s: s.devices and s.devices[0].sums and s.devices[0].sums.allocated == stats["bytes_in_use"])
print(json.dumps({"stats": stats, "device": asdict(sample.devices[0]), "framework": sample.identity.framework,
                  "errors": sample.health.errors}))
"""
)
IDLE = """
import json, subprocess, sys, time
import jax
from jax._src import xla_bridge
from gpufrag import agent
import gpufrag.agent.jax as jax_source
from gpufrag.wire.error_counter import ErrorCounter
source = jax_source.JaxSource(jax, ErrorCounter())
seen = [len(source.read()) for _ in range(100)]
print(json.dumps({"seen": sum(seen), "initialised": bool(xla_bridge._backends), "agent": agent.latest() is not None}))
"""
BOTH = (
    UNTIL
    + """
import json, sys
import torch
held = torch.ones(1 << 20, device="cuda")
import jax, jax.numpy as jnp
kept = jnp.ones((4096, 4096)).block_until_ready()
if jax.local_devices()[0].platform != "gpu":
    print(json.dumps({"skip": "this JAX has no GPU backend"})); sys.exit()
sample = until(lambda s: len(s.devices) == 2)
print(json.dumps({"frameworks": [d.framework for d in sample.devices], "first": sample.identity.framework,
                  "errors": sample.health.errors}))
"""
)


def _run(script: str, folder: Path, **environment: str) -> dict[str, Any]:
    """What the script printed as its last line, run under `gpufrag run`."""
    command = [sys.executable, "-m", "gpufrag", "run", "--", sys.executable, "-c", script]
    variables = {**os.environ, "GPUFRAG_DIR": str(folder), **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "skip" in found:
        pytest.skip(found["skip"])
    return found


@pytest.mark.parametrize("preallocate", ["true", "false"])
def test_figures_are_jaxs_own(tmp_path: Path, preallocate: str) -> None:
    found = _run(READS, tmp_path, XLA_PYTHON_CLIENT_PREALLOCATE=preallocate, XLA_PYTHON_CLIENT_MEM_FRACTION="0.2")
    stats, device, sums = found["stats"], found["device"], found["device"]["sums"]
    assert (found["framework"], found["errors"], device["backend"]) == ("jax", {}, "bfc")
    assert device["limit"] == stats["bytes_limit"]
    assert (sums["allocated"], sums["peak_active"]) == (stats["bytes_in_use"], stats["peak_bytes_in_use"])
    if "pool_bytes" in stats:
        assert sums["reserved"] == stats["pool_bytes"]
        assert sums["free_cached"] == stats["pool_bytes"] - stats["bytes_in_use"]
    if sums["largest_allocatable"] is not None:
        assert sums["largest_allocatable"] == stats["largest_free_block_bytes"] <= sums["free_total"]
    if preallocate == "false":
        assert sums["largest_allocatable"] is None, "what the driver would give to a growing pool is not known"


def test_process_that_only_imports_jax_is_unchanged(tmp_path: Path) -> None:
    assert _run(IDLE, tmp_path) == {"seen": 0, "initialised": False, "agent": False}


@pytest.mark.skipif(find_spec("torch") is None, reason="no torch on this machine")
def test_frameworks_of_one_process_are_distinct(tmp_path: Path) -> None:
    found = _run(BOTH, tmp_path, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    assert found == {"frameworks": ["jax", None], "first": "torch", "errors": {}}
