"""Installs a copy of the agent into a folder. Each step is atomic, so no process sees half of it.

    DIR/versions/<digest>/gpufrag/…    each version that was ever installed; never changed
    DIR/gpufrag -> versions/<digest>/gpufrag
    DIR/bin/gpufrag-run

A process loads most of the agent when it first uses a GPU, perhaps after an upgrade, so old versions stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...errors import Unavailable, UsageError
from ...wire.folder import write_file
from .modules import SHIM, agent_files

WRAPPER = "gpufrag-run"
PTH = "gpufrag-agent.pth"
_OURS = re.compile(r"versions/[0-9a-f]{16}/gpufrag")
_PYTHON_TIMEOUT_S = 60.0


class Installed(NamedTuple):
    """`changed` is False if the same copy was there already. `pth` is the file in the interpreter's site-packages."""

    shim: Path
    wrapper: Path
    changed: bool
    pth: Path | None = None


def install(package: Path, folder: Path, python: str | None = None) -> Installed:
    """Copy the agent of the gpufrag in `package`, and make the interpreter `python` load it in each of its processes.

    Raises UsageError for a folder that holds another gpufrag or that PYTHONPATH cannot name; Unavailable if it cannot
    be written, or `python` cannot be run.
    """
    if os.pathsep in str(folder) or not str(folder).isprintable():
        raise UsageError(
            f"{str(folder)!r}: PYTHONPATH cannot name a folder with {os.pathsep!r} or a control character in its path"
        )
    link = folder / "gpufrag"
    if os.path.lexists(link) and not (link.is_symlink() and _OURS.fullmatch(str(link.readlink()))):
        raise UsageError(f"{link} was not made by install-agent and is not replaced; choose an empty folder")
    site = None if python is None else _site_packages(python)
    try:
        installed = _install(package, folder)
        return installed if site is None else _load_by_pth(installed, site)
    except OSError as error:
        place, what = error.filename or folder, error.strerror or error
        raise Unavailable(f"cannot write {place}: {what}; choose a writable folder with enough space") from None


def _install(package: Path, folder: Path) -> Installed:
    link = folder / "gpufrag"
    files = {path: (package / path).read_bytes() for path in agent_files(package)}
    target = Path("versions", _digest(files), "gpufrag")
    changed = not _is_complete(folder / target, files) and _add_version(folder, target, files)
    if not (link.is_symlink() and link.readlink() == target):
        with _scratch(folder) as scratch:
            (scratch / link.name).symlink_to(target)
            os.replace(scratch / link.name, link)
        changed = True
    wrapper = folder / "bin" / WRAPPER
    changed |= _write_if_new(wrapper, (Path(__file__).parent / WRAPPER).read_bytes(), 0o755)
    return Installed(link / SHIM.parent, wrapper, changed)


def _load_by_pth(installed: Installed, site: Path) -> Installed:
    """Python runs each line of a .pth file that starts with `import`, before any sitecustomize."""
    shim = str(installed.shim / SHIM.name)
    names = f"{{'__name__': 'gpufrag_pth', '__file__': {shim!r}}}"
    line = f"import os; os.path.isfile({shim!r}) and exec(compile(open({shim!r}).read(), {shim!r}, 'exec'), {names})\n"
    changed = _write_if_new(site / PTH, line.encode(), 0o644)
    return installed._replace(changed=installed.changed or changed, pth=site / PTH)


def _site_packages(python: str) -> Path:
    """Raises Unavailable."""
    program = "import json, sysconfig; print(json.dumps(sysconfig.get_paths()['purelib']))"
    try:
        done = subprocess.run(
            [python, "-I", "-c", program], capture_output=True, text=True, timeout=_PYTHON_TIMEOUT_S, check=True
        )
        return Path(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as error:
        what = getattr(error, "strerror", None) or (getattr(error, "stderr", "") or "").strip()[-200:] or error
        raise Unavailable(f"cannot run {python!r} as a Python interpreter: {what}; check --python") from None


def _digest(files: dict[Path, bytes]) -> str:
    digest = hashlib.sha256()
    for path, data in files.items():
        digest.update(f"{path.as_posix()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:16]


def _is_complete(version: Path, files: dict[Path, bytes]) -> bool:
    """Raises Unavailable for a version that was changed: processes may be using it."""
    if not version.is_dir():
        return False
    for path, data in files.items():
        file = version / path
        if not file.is_file() or file.read_bytes() != data:
            raise Unavailable(f"{file} was changed after it was installed; remove {version.parent} and install again")
    return True


def _add_version(folder: Path, target: Path, files: dict[Path, bytes]) -> bool:
    with _scratch(folder) as scratch:
        for path, data in files.items():
            file = scratch / target.name / path
            _make_folder(file.parent)
            file.write_bytes(data)
            file.chmod(0o644)
        _make_folder(folder / target.parent)
        try:
            os.rename(scratch / target.name, folder / target)
        except OSError:
            if not (folder / target).is_dir():  # else another installer has just made it
                raise
    return True


def _write_if_new(path: Path, data: bytes, mode: int) -> bool:
    """Return whether the file was written. Keeps the one that is there if it has this content."""
    if path.is_file() and path.read_bytes() == data:
        return False
    _make_folder(path.parent)
    write_file(path, data, mode)
    return True


def _make_folder(path: Path) -> Path:
    """Make the folder and its missing parents, readable for every user that a job may run as."""
    if not path.is_dir():
        _make_folder(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fchmod(descriptor, 0o755)  # not by name, which another user may have replaced
            finally:
                os.close(descriptor)
    return path


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A private folder on the same file system, removed afterwards."""
    scratch = Path(tempfile.mkdtemp(prefix=".gpufrag-", dir=_make_folder(folder)))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
