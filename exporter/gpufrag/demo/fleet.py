"""The demo's processes: its ranks, and the sidecar that publishes them."""

from __future__ import annotations

import socket
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from ..errors import Unavailable
from .process import Process, uninterrupted

START_SECONDS = 20.0  # a slow machine that imports everything for the first time


class Fleet:
    """The running demo; `url` is its sidecar's."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.processes: list[Process] = []

    def require_alive(self) -> None:
        """Raises Unavailable that names the first process that has ended, and why."""
        for process in self.processes:
            process.require_alive()

    def last_words(self) -> str:
        """What the processes said last, in a line; empty where they were silent."""
        said = [(process.name, process.last_words()) for process in self.processes]
        return "; ".join(f"{name} said: {words}" for name, words in said if words)


@contextmanager
def running(ranks: Sequence[Sequence[str]], port: int | None = None) -> Iterator[Fleet]:
    """Start a sidecar and one process a rank (its command); yields once the sidecar is ready.

    All of them are ended, and their folder removed, when the context ends. Raises Unavailable where one of them
    does not come up.
    """
    with ExitStack() as stack:
        with uninterrupted():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpufrag-demo-"))
        port = port or _free_port()
        fleet = Fleet(f"http://127.0.0.1:{port}")

        def start(name: str, arguments: Sequence[str], identity: Mapping[str, str]) -> None:
            with uninterrupted():
                process = Process(name, arguments, {"GPUFRAG_DIR": folder, **identity})
                stack.callback(process.end)
            fleet.processes.append(process)

        start("the sidecar", ["-m", "gpufrag", "serve", "--port", str(port), "--log.level", "warning"], {})
        for rank, command in enumerate(ranks):
            identity = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(ranks))}
            start(f"rank {rank}", command, identity)
        _wait_until_ready(fleet)
        yield fleet


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(fleet: Fleet, clock: Callable[[], float] = time.monotonic) -> None:
    deadline = clock() + START_SECONDS
    while clock() < deadline:
        fleet.require_alive()
        try:
            with urllib.request.urlopen(f"{fleet.url}/-/ready", timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise Unavailable(f"the sidecar at {fleet.url} was not ready within {START_SECONDS:.0f} s")
