"""Puts the copy into a folder, in one step that no process can see half of.

    DIR/versions/<digest>/gpufrag/…    one for each version that was ever installed; never changed once there
    DIR/gpufrag -> versions/<digest>/gpufrag
    DIR/bin/gpufrag-run

A process loads the greater part of the agent only when it uses a GPU, perhaps after an upgrade: so old versions stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...errors import Unavailable, UsageError
from .modules import SHIM, agent_files

WRAPPER = "gpufrag-run"
_OURS = re.compile(r"versions/[0-9a-f]{16}/gpufrag")


class Installed(NamedTuple):
    """Where the copy lies; `changed` is False where the same one was there already."""

    shim: Path
    wrapper: Path
    changed: bool


def install(package: Path, folder: Path) -> Installed:
    """Copy the agent of the gpufrag in `package`.

    Raises UsageError for a folder with a gpufrag that is not ours, or that PYTHONPATH cannot name; Unavailable for one
    that cannot be filled.
    """
    _refuse(folder)
    try:
        return _install(package, folder)
    except OSError as error:
        what = error.strerror or str(error)
        raise Unavailable(
            f"{folder}: cannot be filled ({what}); give a folder that can be written and has room"
        ) from None


def _refuse(folder: Path) -> None:
    if os.pathsep in str(folder) or not str(folder).isprintable():
        raise UsageError(
            f"{str(folder)!r}: PYTHONPATH cannot name a folder with a {os.pathsep!r} or a control character"
        )
    link = folder / "gpufrag"
    if os.path.lexists(link) and not (link.is_symlink() and _OURS.fullmatch(str(link.readlink()))):
        raise UsageError(f"{link}: not made by install-agent, so it is not replaced; give an empty folder")


def _install(package: Path, folder: Path) -> Installed:
    link = folder / "gpufrag"
    files = {path: (package / path).read_bytes() for path in agent_files(package)}
    target = Path("versions", _digest(files), "gpufrag")
    changed = not _is_whole(folder / target, files) and _add_version(folder, target, files)
    changed |= _replace_link(link, target)
    wrapper = folder / "bin" / WRAPPER
    changed |= _replace_file(wrapper, (Path(__file__).parent / WRAPPER).read_bytes())
    return Installed(link / SHIM.parent, wrapper, changed)


def _digest(files: dict[Path, bytes]) -> str:
    whole = hashlib.sha256()
    for path, data in files.items():
        whole.update(f"{path.as_posix()}\0{len(data)}\0".encode() + data)
    return whole.hexdigest()[:16]


def _is_whole(version: Path, files: dict[Path, bytes]) -> bool:
    """Raises Unavailable for a version that somebody has changed: processes may be using it as it is."""
    if not version.is_dir():
        return False
    for path, data in files.items():
        file = version / path
        if not file.is_file() or file.read_bytes() != data:
            raise Unavailable(f"{file}: changed since it was installed; remove {version.parent} and install again")
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
            if not (folder / target).is_dir():  # else another installer has just made the same
                raise
    return True


def _replace_link(link: Path, target: Path) -> bool:
    if link.is_symlink() and link.readlink() == target:
        return False
    with _scratch(link.parent) as scratch:
        (scratch / link.name).symlink_to(target)
        os.replace(scratch / link.name, link)
    return True


def _replace_file(path: Path, data: bytes) -> bool:
    if path.is_file() and path.read_bytes() == data:
        return False
    _make_folder(path.parent)
    with _scratch(path.parent) as scratch:
        (scratch / path.name).write_bytes(data)
        (scratch / path.name).chmod(0o755)
        os.replace(scratch / path.name, path)
    return True


def _make_folder(path: Path) -> Path:
    """With every missing parent, to be read by whatever user the job runs as."""
    if not path.is_dir():
        _make_folder(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            path.chmod(0o755)
    return path


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A private folder on the same file system; nothing is left of it, however it goes."""
    scratch = Path(tempfile.mkdtemp(prefix=".gpufrag-", dir=_make_folder(folder)))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
