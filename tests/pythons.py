"""The interpreters of this machine that the agent supports: `from pythons import INTERPRETERS, interpreter`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def interpreter(version: str) -> str | None:
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    built = sorted(versions.glob(f"{version}.*/bin/python{version}")) if os.access(versions, os.R_OK | os.X_OK) else []
    if built or version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return str(built[-1]) if built else sys.executable
    return _answering(shutil.which(f"python{version}"), version)


def _answering(python: str | None, version: str) -> str | None:
    """PATH contains a version manager's shim for every version that it supports."""
    if python is None:
        return None
    done = subprocess.run([python, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
    return python if done.stdout.startswith(f"{version}.") else None


INTERPRETERS = {version: found for version in VERSIONS if (found := interpreter(version))}
"""Those that are here; the others are named by the test's id that is missing: `pytest --collect-only` shows them."""
