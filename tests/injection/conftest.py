"""Jobs as an init container sets them up: a copy of the agent, PYTHONPATH with only its shim, and a minimal torch."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpufrag.attach.agent_copy.install import install
from gpufrag.commands.run import PACKAGE
from gpufrag.wire.sample import ProcessSample, decode

TORCH = """
__version__ = "2.11.0"
from . import version, cuda
def use_gpu():
    for call in cuda.calls: call()
    cuda.begun.append(True)
import colorsys  # torch imports much more after torch.cuda
"""
CUDA = """
begun, calls = [], []
def is_initialized(): return bool(begun)
_lazy_call = calls.append
def device_count(): return 0
"""
FOREIGN = 1_000_680_000
"""A user without passwd entry, as in OpenShift."""
VERSION = "__version__, cuda, hip = '2.11.0', '13.0', None"
JOB = """
import sys, threading, time, torch
torch.use_gpu()
begun = [thread for thread in threading.enumerate() if thread.name == "gpufrag-sampler"]
deadline = time.monotonic() + 30
while begun and sys.modules["gpufrag.agent"].latest() is None and time.monotonic() < deadline: time.sleep(0.005)
print("agent" if begun and sys.modules["gpufrag.agent"].latest() else "no agent", flush=True)
"""
"""Use the GPU as the module `job`, and report whether an agent runs."""


@dataclass
class Site:
    """A folder that everybody may read, with the copy, torch and the job in it."""

    folder: Path
    python: str
    user: int | None = None

    @property
    def shim(self) -> Path:
        return self.folder / "copy" / "gpufrag" / "shim"

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`{python}` in a word is the interpreter."""
        surroundings = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{self.shim}:{self.folder / 'site'}",
            "GPUFRAG_DIR": str(self.shared),
            "HOME": str(self.folder),
        }
        return subprocess.run(
            [word.replace("{python}", self.python) for word in words],
            env={name: value for name, value in {**surroundings, **environment}.items() if value},
            cwd=self.folder,
            text=True,
            capture_output=True,
            timeout=100,
            **({"user": self.user, "group": self.user, "extra_groups": []} if self.user else {}),
        )

    def job(self, **options: Any) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of the job."""
        done = self.run("{python}", "-m", "job", **options)
        return done.returncode, done.stdout, done.stderr

    def sample(self) -> ProcessSample:
        """What the job's agent published."""
        (file,) = self.shared.glob("*.json")
        return decode(file.read_bytes())


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter in which gpufrag is not installed."""
    folder = tmp_path_factory.mktemp("bare-venv")
    venv.create(folder, symlinks=True)
    return str(folder / "bin" / "python")


@pytest.fixture
def site(bare: str) -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="gpufrag-test-"))  # pytest's own are closed to other users
    folder.chmod(0o755)
    install(PACKAGE, folder / "copy")
    (folder / "site" / "torch").mkdir(parents=True)
    files = {"torch/__init__.py": TORCH, "torch/cuda.py": CUDA, "torch/version.py": VERSION, "job.py": JOB}
    for name, text in files.items():
        (folder / "site" / name).write_text(text)
    (folder / "shared").mkdir()
    yield Site(folder, bare)
    shutil.rmtree(folder)


@pytest.fixture
def foreign(site: Site) -> Site:
    """Runs jobs as another user, who owns the shared folder."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    site.user = FOREIGN
    os.chown(site.shared, FOREIGN, FOREIGN)
    for site.python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if site.run("{python}", "-c", "", PYTHONPATH="").returncode == 0:
                return site
    pytest.skip("no interpreter here may be run by another user")
