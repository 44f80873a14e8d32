"""A file for Prometheus' file_sd_configs with the sidecar's address, for hosts without service discovery.

The sidecar writes it once it listens and removes it at exit. A killed sidecar leaves the file, and the target is down
until the job's epilogue removes it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import Unavailable
from ..web.listen import Address
from ..wire.folder import write_file

ANY_HOST = ("", "0.0.0.0", "::")


@contextmanager
def kept(
    folder: Path, environment: Mapping[str, str] = os.environ, host: str | None = None
) -> Iterator[Callable[[Address], None]]:
    """Yield a function that writes the file for an address (raises Unavailable); remove the file at the end."""
    written: list[Path] = []

    def announce(address: Address) -> None:
        reached = (host or socket.gethostname()) if address.host in ANY_HOST else address.host
        path = folder / f"{reached.replace(':', '_')}-{address.port}.json"
        written.append(path)
        entry = {"targets": [str(Address(reached, address.port))], "labels": labels(environment)}
        try:
            write_file(path, f"{json.dumps([entry])}\n".encode())  # the draft's name does not match `*.json`
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}; choose a writable folder with --write-target") from None

    try:
        yield announce
    finally:
        for path in written:
            path.unlink(missing_ok=True)


def labels(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of the Slurm job. Slurm's job names are not unique, so job_name includes the number."""
    number, name = environment.get("SLURM_JOB_ID"), environment.get("SLURM_JOB_NAME")
    found = {
        "job_name": "-".join(filter(None, [name, number])),
        "slurm_job_id": number,
        "cluster": environment.get("SLURM_CLUSTER_NAME"),
    }
    return {label: value for label, value in found.items() if value}
