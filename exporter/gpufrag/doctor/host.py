"""The checks of a host: the folder in which ranks and sidecar meet, the ranks, the driver, the sidecar."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..sidecar.readings import NvmlReading
from . import devices, ranks, sidecar
from .results import Check, Fail, Ok, Result, Warn

NAME_IT = "name the one that the job has by --folder or $GPUFRAG_DIR"


@dataclass(frozen=True)
class Host:
    """What the checks of a host look at. `find_folder` may raise Unavailable; `now` is in Unix seconds."""

    find_folder: Callable[[], Path]
    now: Callable[[], float]
    read_nvml: Callable[[], NvmlReading]
    sidecar_url: str


def _folder(host: Host) -> Result:
    path = host.find_folder()
    try:
        status = path.stat()
    except FileNotFoundError:
        return Fail(f"{path}: no such folder: no process with an agent has run here; {NAME_IT}")
    told = f"{path}: mode {stat.S_IMODE(status.st_mode):04o}, of {_user(status.st_uid)}"
    if not stat.S_ISDIR(status.st_mode):
        return Fail(f"{path}: no folder; {NAME_IT}")
    if not os.access(path, os.R_OK | os.X_OK):
        return Fail(f"{told}, not readable for {_user(os.geteuid())}; run as the job's user, or share a group with it")
    if not os.access(path, os.W_OK):
        return Warn(f"{told}, not writable for {_user(os.geteuid())}: a sidecar of that user can sweep nothing")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return Warn(f"{told}: anybody may remove what ranks have put there; chmod 1777, or 2770 for a group")
    return Ok(f"{told}, writable")


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _files(host: Host) -> Result:
    return ranks.files(host.find_folder())


def _samples(host: Host) -> Result:
    return ranks.samples(host.find_folder(), host.now())


def _sockets(host: Host) -> Result:
    return ranks.sockets(host.find_folder())


def _steps(host: Host) -> Result:
    return ranks.steps(host.find_folder())


def _checkpoint(host: Host) -> Result:
    return ranks.checkpoint(host.find_folder())


def _versions(host: Host) -> Result:
    return ranks.versions(host.find_folder())


def _nvml(host: Host) -> Result:
    return devices.compare(host.read_nvml, ranks.alive(host.find_folder()))


def _sidecar(host: Host) -> Result:
    return sidecar.ask(host.sidecar_url)


CHECKS: tuple[Check[Host], ...] = (
    Check("folder", "is it there, of whom, and who may write to it", _folder),
    Check("files", "can the ranks' files be read", _files),
    Check("samples", "how old is what each living rank has written last", _samples),
    Check("sockets", "does each living rank answer on its control socket", _sockets),
    Check("steps", "has each rank a step hook, and has it seen a step", _steps),
    Check("checkpoint", "has each rank told how to save before a restart", _checkpoint),
    Check("versions", "are the ranks' versions of torch known ones", _versions),
    Check("nvml", "does the driver answer, and does it show the GPUs that the ranks use", _nvml),
    Check("sidecar", "is it ready, and of this version", _sidecar),
)
