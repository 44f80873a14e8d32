"""The checks of a host: the folder, the driver, the sidecar; the ranks have a table of their own."""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass

from .. import __version__
from ..errors import Unavailable
from ..metrics.names import BUILD_INFO, Label
from ..sidecar.readings import NvmlReading
from ..web.client import Client
from . import injection as injected
from .checks import Check, Fail, Ok, Result, Warn, some
from .ranks import Ranks

VERSION = re.compile(rf'^{BUILD_INFO}\{{[^}}]*\b{Label.VERSION}="([^"]{{1,40}})"', re.MULTILINE)


@dataclass(frozen=True)
class Host:
    ranks: Ranks
    read_nvml: Callable[[], NvmlReading]
    """May raise Unavailable."""
    sidecar: Client


def folder(host: Host) -> Result:
    path = host.ranks.folder
    choose = "choose the job's folder with --folder or $GPUFRAG_DIR"
    try:
        status = path.stat()
    except FileNotFoundError:
        return Fail(f"{path} does not exist: no process with an agent has run here; {choose}")
    facts = f"{path}: mode {stat.S_IMODE(status.st_mode):04o}, owner {_user(status.st_uid)}"
    if not stat.S_ISDIR(status.st_mode):
        return Fail(f"{path} is not a folder; {choose}")
    me = _user(os.geteuid())
    if not os.access(path, os.R_OK | os.X_OK):
        return Fail(f"{facts}, not readable for {me}; run as the job's user, or share a group with it")
    if not os.access(path, os.W_OK):
        return Warn(f"{facts}, not writable for {me}: a sidecar of that user cannot remove old files")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return Warn(f"{facts}: every user can remove the ranks' files; chmod 1777, or 2770 for a group")
    return Ok(f"{facts}, writable")


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def nvml(host: Host) -> Result:
    try:
        reading = host.read_nvml()
    except Unavailable as error:
        return Warn(f"{error}; the sidecar uses the agents' readings instead")
    lost = [problem for problem in reading.problems if problem.lost]
    if lost:
        return Fail(f"GPU {lost[0].index}: {lost[0].text}")
    known = {_bare(device.uuid) for device in reading.devices}
    known |= {_bare(uuid) for device in reading.devices for part in device.instances for uuid in part.uuids}
    foreign = [
        rank
        for rank, sample in host.ranks.alive
        for device in sample.devices
        if (uuid := device.mig_uuid or device.uuid) and _bare(uuid) not in known
    ]
    if foreign:
        return Warn(
            f"{some(foreign)}: NVML does not show the GPU here: the folder is from another host, or this container "
            "does not have the GPU"
        )
    return Ok(f"driver {reading.driver_version or 'unknown'}, {len(reading.devices)} GPU(s), including the ranks'")


def _bare(uuid: str) -> str:
    """Torch omits the prefix that NVML has."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


def sidecar(host: Host) -> Result:
    ready = host.sidecar.get("/-/ready")
    state = " ".join(ready.text.split())[:300]
    if ready.status == 404:
        return Fail(f"{ready.url} does not exist: this is not a gpufrag sidecar; check the address")
    if ready.status != 200:
        return Fail(f"{ready.url} answered with status {ready.status}: {state}")
    if state != "ready":
        return Warn(f"{ready.url}: {state}")
    metrics = host.sidecar.get("/metrics")
    url = host.sidecar.base_url
    if metrics.status in (401, 403):
        return Warn(f"{url} is ready; its version is unknown, because its metrics require a password")
    version = VERSION.search(metrics.text)
    if version is None:
        return Fail(f"{metrics.url} has no {BUILD_INFO}: this is not a gpufrag sidecar; check the address")
    if version[1] != __version__:
        return Warn(f"{url} is gpufrag {version[1]}, this is {__version__}; use one release for both")
    return Ok(f"{url} is ready, version {__version__}")


def injection(host: Host) -> Result:
    return injected.check(host.ranks.folder)


CHECKS: tuple[Check[Host], ...] = (
    Check("folder", "does the folder exist, and who may write to it", folder),
    Check("nvml", "does the driver answer, and does it show the GPUs of the ranks", nvml),
    Check("sidecar", "is the sidecar ready, and does its version match", sidecar),
    Check("injection", "does each process under the shim have an agent, and if not, why", injection),
)
