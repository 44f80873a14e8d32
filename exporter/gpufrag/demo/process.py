"""One process of the demo. What it says on stderr is kept, to be told should it end before its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import Unavailable

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What ends the demo, and all of its processes with it."""
END_SECONDS = 6  # the sidecar drains for up to 5 s
_MOST = 4096  # bytes of what it said last


class Process:
    """Runs Python with `arguments` from its making to `end`."""

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        # In a session of its own: Ctrl-C at the terminal is for the demo, which then ends its processes in order.
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": _path(), **environment},
            stdin=subprocess.DEVNULL,
            stderr=self._words,
            start_new_session=True,
        )

    def require_alive(self) -> None:
        """Raises Unavailable that says how it ended, and what it said last."""
        code = self._process.poll()
        if code is None:
            return
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        said = self.last_words()
        raise Unavailable(f"{self.name} {how}" + (f": {said}" if said else ""))

    def last_words(self) -> str:
        """The last line on its stderr; empty where there is none."""
        size = os.fstat(self._words.fileno()).st_size
        text = os.pread(self._words.fileno(), _MOST, max(0, size - _MOST)).decode(errors="replace")
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        return last.removeprefix("gpufrag: ").removeprefix("gpufrag demo: ")

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._words.close()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A signal that ends the demo waits: else a process that was just begun would be forgotten. For the main thread."""
    held: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: held.append(number)) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for kept in held:
            signal.raise_signal(kept)


def _path() -> str:
    package = str(Path(__file__).parents[2])  # so that it runs from a source tree too
    return os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
