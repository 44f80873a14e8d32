"""The demo's processes: its ranks, and the sidecar that publishes them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..errors import Unavailable

START_SECONDS = 20.0  # a slow machine that imports everything for the first time


@contextmanager
def running(ranks: Sequence[Sequence[str]], port: int | None = None) -> Iterator[str]:
    """Start a sidecar and one process a rank (its command); yields the sidecar's URL once it is ready.

    All of them are ended, and their folder removed, when the context ends. Raises Unavailable where the sidecar
    does not come up.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpufrag-demo-"))
        port = port or _free_port()
        sidecar = _start(["-m", "gpufrag", "serve", "--port", str(port), "--log.level", "warning"], folder, {})
        stack.callback(_end, sidecar)
        for rank, command in enumerate(ranks):
            identity = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(ranks))}
            stack.callback(_end, _start(command, folder, identity))
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(url, sidecar)
        yield url


def _start(arguments: Sequence[str], folder: str, extra: Mapping[str, str]) -> subprocess.Popen[bytes]:
    package = str(Path(__file__).parents[2])  # so that it runs from a source tree too
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "GPUFRAG_DIR": folder, "PYTHONPATH": path, **extra}
    # in a session of its own: Ctrl-C at the terminal is for the demo, which then ends its processes in order
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=6)  # the sidecar drains for up to 5 s
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(url: str, sidecar: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if sidecar.poll() is not None:
            raise Unavailable("the demo's sidecar ended at once; what it printed above says why")
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise Unavailable(f"the demo's sidecar at {url} was not ready within {START_SECONDS:.0f} s")
