"""The torch releases that the stub supports, and the parts of their wheels, kept in the user's cache folder."""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

RELEASES = (
    "2.1.2", "2.2.2", "2.3.1", "2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0",
    "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0",
)  # fmt: skip
NEWEST = RELEASES[-1]

ALLOCATOR_FILES = re.compile(
    r"torch/lib/libc10(_cuda)?\.so$|torch/lib/libcudart|torch(/lib|\.libs)/lib(gomp|numa)"
    r"|torch/include/(c10|torch/headeronly|torch/standalone)/"
)
PURE_DEPENDENCIES = ("typing-extensions", "filelock", "jinja2", "networkx", "fsspec", "sympy", "setuptools")


class Unavailable(Exception):
    """A requirement is not available on this machine. The message has the remedy."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "gpufrag-fake-cuda")


def minor(release: str) -> int:
    return int(release.split(".")[1])


def allocator_folder(release: str) -> Path:
    """Return the folder with `torch/lib/libc10_cuda.so` and the headers of c10, downloading the wheel if necessary."""
    folder, installed = cache_folder() / "allocator" / release, cache_folder() / "torch" / release
    with building(folder) as scratch:
        if scratch is not None and installed.exists():
            for path in installed.rglob("*"):
                name = path.relative_to(installed)
                if ALLOCATOR_FILES.match(name.as_posix()) and path.is_file():
                    (scratch / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, scratch / name)
        elif scratch is not None:
            with downloaded_wheel(release) as wheel, zipfile.ZipFile(wheel) as archive:
                archive.extractall(scratch, [name for name in archive.namelist() if ALLOCATOR_FILES.match(name)])
    return folder


def torch_folder(release: str) -> Path:
    """Return a folder for PYTHONPATH with the whole CUDA build of torch and its pure Python dependencies."""
    folder = cache_folder() / "torch" / release
    with building(folder) as scratch:
        if scratch is not None:
            with downloaded_wheel(release) as wheel:
                _pip("install", "--no-compile", "--target", str(scratch), *PURE_DEPENDENCIES)
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(scratch)
    return folder


def remove(release: str) -> None:
    """Delete the whole torch of this release from the cache. The parts of its allocator stay, 5 MB."""
    folder = cache_folder() / "torch" / release
    if folder.exists():
        with tempfile.TemporaryDirectory(prefix=f".{release}.", dir=folder.parent) as scratch:
            folder.rename(Path(scratch, "removed"))  # at once: nothing may find a half of it


@contextlib.contextmanager
def building(folder: Path) -> Iterator[Path | None]:
    """Yield a scratch folder that becomes `folder`, or None if `folder` exists. One process builds at a time."""
    if folder.exists():
        yield None
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            yield None
            return
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            made = Path(scratch, "made")
            made.mkdir()
            yield made
            made.rename(folder)


@contextlib.contextmanager
def downloaded_wheel(release: str) -> Iterator[Path]:
    """Yield the wheel of the CUDA build of this release, about 0.5 to 0.9 GB, which is deleted afterwards."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=cache_folder()) as folder:
        # `===` keeps pip from preferring a local CPU build (2.13.0+cpu) to the CUDA build of the index
        _pip("download", "--no-cache-dir", "--no-deps", "--only-binary=:all:", "--dest", folder, f"torch==={release}")
        yield next(Path(folder).glob("torch-*.whl"))


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    surroundings = {**os.environ, "PIP_CONSTRAINT": os.devnull}  # one that caps torch is not meant for this copy
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=surroundings)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise Unavailable(f"cannot download torch: pip {arguments[0]}: {why}")
