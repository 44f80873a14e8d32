"""A one-node Slurm on this machine: the distribution's munged, slurmctld and slurmd, as root, on free ports."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "squeue", "scancel", "sbatch")
PATIENCE_S = 60.0
CONFIG = """
ClusterName=gpufrag
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={controller}
SlurmdPort={daemon}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
JobRequeue=1
KillWait=5
MpiDefault=none
SchedulerParameters=sched_interval=1,bf_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def missing() -> list[str]:
    """What is not installed; servers lie where a user's PATH need not lead."""
    return [name for name in PROGRAMS if found(name) is None]


def found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Slurm:
    """A cluster that runs. `environment` is what its commands need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def command(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"{words}: {done.stderr}\n{self.logs}"
        return done.stdout.strip()

    @property
    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in self.folder.glob("*.log"))

    def until(self, what: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline, self.logs
            time.sleep(0.1)


@contextmanager
def running(folder: Path) -> Iterator[Slurm]:
    """Yield it once its node is idle. `folder` must have a short path: munge's socket is in it."""
    slurm = Slurm(folder)
    _write(folder)
    with ExitStack() as stack:
        munge = {"key-file": "key", "socket": "munge.sock", "pid-file": "munge.pid", "seed-file": "seed"}
        flags = [f"--{flag}={folder / name}" for flag, name in munge.items()]
        stack.enter_context(_started(slurm, "munged", "--foreground", "--force", *flags))
        slurm.until((folder / "munge.sock").exists)
        stack.enter_context(_started(slurm, "slurmctld", "-D"))
        stack.enter_context(_started(slurm, "slurmd", "-D"))
        slurm.until(lambda: "idle" in _state(slurm.environment))
        yield slurm
        slurm.command("scancel", "--full", "--signal=KILL", "--user=root")


def _state(environment: Mapping[str, str]) -> str:
    """Of the node; empty while the controller does not answer yet."""
    done = subprocess.run(["sinfo", "--noheader", "--format=%t"], env=environment, capture_output=True, text=True)
    return done.stdout


def _write(folder: Path) -> None:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    controller, daemon = _free_ports()
    fields = {"host": socket.gethostname().partition(".")[0], "folder": folder, "cpus": os.cpu_count()}
    (folder / "slurm.conf").write_text(CONFIG.format(controller=controller, daemon=daemon, **fields))


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@contextmanager
def _started(slurm: Slurm, program: str, *flags: str) -> Iterator[None]:
    with (slurm.folder / f"{program}.log").open("w") as log:
        process = subprocess.Popen([found(program) or program, *flags], env=slurm.environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
