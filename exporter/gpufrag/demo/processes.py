"""The demo's processes: a sidecar and its ranks. All of them end with the demo."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..errors import Unavailable
from ..web.client import Client

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
START_SECONDS = 20.0
END_SECONDS = 6  # the sidecar drains for up to 5 s
MAX_ERROR = 4096


class Process:
    """Runs Python with `arguments` until `end`."""

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._stdout = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        package = str(Path(__file__).parents[2])  # so that it runs from a source tree too
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        # Its own session, because Ctrl-C in the terminal is for the demo, which then ends its processes in order.
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": path, **environment},
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
            start_new_session=True,
        )

    def require_alive(self) -> None:
        """Raises Unavailable that says how it ended, with its last line of stderr."""
        code = self._process.poll()
        if code is None:
            return
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        error = self.last_error()
        raise Unavailable(f"{self.name} {how}" + (f": {error}" if error else ""))

    def last_error(self) -> str:
        """Return the last line of its stderr, or an empty string."""
        size = os.fstat(self._stderr.fileno()).st_size
        text = os.pread(self._stderr.fileno(), MAX_ERROR, max(0, size - MAX_ERROR)).decode(errors="replace")
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        return last.removeprefix("gpufrag: ").removeprefix("gpufrag demo: ")

    def output(self) -> str:
        """Return the first line of its stdout, or an empty string while it is not complete."""
        text = os.pread(self._stdout.fileno(), MAX_ERROR, 0).decode(errors="replace")
        return text.partition("\n")[0] if "\n" in text else ""

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()
        self._stderr.close()


class Demo:
    """The running demo. `url` is the address of its sidecar."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.processes: list[Process] = []
        """The sidecar, then the ranks."""

    def replays_ended(self) -> dict[str, float] | None:
        """Return when the replay of each rank ended, in seconds of the system clock; None while one has not ended."""
        ends = {str(rank): process.output() for rank, process in enumerate(self.processes[1:])}
        return {rank: float(end) for rank, end in ends.items()} if all(ends.values()) else None

    def require_alive(self) -> None:
        """Raises Unavailable that names the first process that has ended, and why."""
        for process in self.processes:
            process.require_alive()

    def last_errors(self) -> str:
        """Return the last line of stderr of each process, in one line."""
        errors = [(process.name, process.last_error()) for process in self.processes]
        return "; ".join(f"{name}: {error}" for name, error in errors if error)


@contextmanager
def running(ranks: Sequence[Sequence[str]], host: str = "127.0.0.1", port: int | None = None) -> Iterator[Demo]:
    """Start a sidecar and a process per rank (its arguments); yield once the sidecar is ready.

    At the end, all of them are stopped and their folder is removed. Raises Unavailable if one of them does not start.
    """
    with ExitStack() as stack:
        with uninterrupted():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpufrag-demo-"))
        port = port or _free_port()
        demo = Demo(f"http://127.0.0.1:{port}")

        def start(name: str, arguments: Sequence[str], identity: Mapping[str, str]) -> None:
            with uninterrupted():
                process = Process(name, arguments, {"GPUFRAG_DIR": folder, **identity})
                stack.callback(process.end)
            demo.processes.append(process)

        serve = ["-m", "gpufrag", "serve", "--host", host, "--port", str(port), "--log.level", "warning"]
        start("the sidecar", serve, {})
        for rank, command in enumerate(ranks):
            identity = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(ranks))}
            start(f"rank {rank}", command, identity)
        _wait_until_ready(demo)
        yield demo


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay signals that end the demo, so that a process that was just started is not forgotten. Main thread only."""
    delayed: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: delayed.append(number)) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in delayed:
            signal.raise_signal(late)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(demo: Demo, clock: Callable[[], float] = time.monotonic) -> None:
    client, deadline = Client(demo.url, timeout_s=1), clock() + START_SECONDS
    while clock() < deadline:
        demo.require_alive()
        try:
            if client.get("/-/ready").status == 200:
                return
        except Unavailable:
            pass
        time.sleep(0.05)
    raise Unavailable(f"the sidecar at {demo.url} was not ready within {START_SECONDS:.0f} s")
