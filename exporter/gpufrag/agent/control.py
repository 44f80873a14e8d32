"""The control socket: proof of life, and a few commands. One request, one answer, each a line of JSON.

    {"command": "ping"}  ->  {"ok": true, …}
    anything else        ->  {"ok": false, "error": "…"}

That a connection is accepted proves that the process lives; the kernel does it, even while the interpreter is busy.
"""

from __future__ import annotations

import contextlib
import json
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import GpufragError
from ..folder import socket_address
from .trouble import Trouble

Command = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From the request to the answer's fields; raises GpufragError for what the caller is to be told."""

LARGEST_REQUEST = 4096
PATIENCE = 2.0
"""Seconds in which a caller must have sent its request and taken its answer: others wait meanwhile."""
QUEUE = 64
ERROR_PAUSE = 1.0


class Control:
    """Listens at `path` until closed, in a thread of its own."""

    def __init__(self, path: Path, commands: Mapping[str, Command], trouble: Trouble) -> None:
        self.path, self._commands, self._trouble = path, commands, trouble
        self._closed = threading.Event()
        self._socket = _listen(path)
        self._inode = path.stat().st_ino
        self._thread = threading.Thread(target=self._serve, name="gpufrag-control", daemon=True)
        self._thread.start()

    @property
    def reachable(self) -> bool:
        """False once something (a tidy-up of the temp dir) has taken the socket's name away."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Stop listening, and take the name away unless somebody else has it by now."""
        self._closed.set()
        if self.reachable:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        with contextlib.suppress(OSError):  # not connected: it is the thread in accept that is to be woken
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(ERROR_PAUSE)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's socket, which must not outlive the parent, and of nothing else."""
        self._socket.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._socket.accept()
                with connection:
                    self._converse(connection)
            except OSError:  # closed, or no descriptor is free
                self._closed.wait(ERROR_PAUSE)
            except Exception as error:  # a command's fault: the next caller is to be heard all the same
                self._trouble.note("control", error, "this command was not carried out")

    def _converse(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if line := _receive(connection):
                connection.sendall(self._answer(line))

    def _answer(self, line: bytes) -> bytes:
        try:
            request = json.loads(line)
            answer = {"ok": True, **self._command(request)(request)}
        except (ValueError, RecursionError):
            answer = {"ok": False, "error": "not a request: it must be one line of JSON of up to 4096 bytes"}
        except GpufragError as error:
            answer = {"ok": False, "error": str(error)}
        return json.dumps(answer).encode() + b"\n"

    def _command(self, request: Any) -> Command:
        name = request.get("command") if isinstance(request, dict) else None
        command = self._commands.get(name) if isinstance(name, str) else None
        if command is None:
            raise GpufragError(f"no such command: {name!r}; there are {', '.join(sorted(self._commands))}")
        return command


def _listen(path: Path) -> socket.socket:
    """A socket that listens from the moment its name appears. Raises OSError or Unavailable where it cannot."""
    unfinished = path.with_name(f".{path.stem[-40:]}.tmp")
    unfinished.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(unfinished) as address:
            listener.bind(address)
        unfinished.chmod(_mode(path.parent))
        listener.listen(QUEUE)
        unfinished.replace(path)
    except BaseException:
        listener.close()
        unfinished.unlink(missing_ok=True)
        raise
    return listener


def _mode(folder: Path) -> int:
    """0600, and for those too who may write to the folder: they could put a socket of their own in its place."""
    mode = folder.stat().st_mode
    return 0o600 if mode & stat.S_ISVTX else 0o600 | mode & 0o022 | (mode & 0o022) << 1


def _receive(connection: socket.socket) -> bytes:
    """The request's line; empty where the caller only knocked. Raises TimeoutError, and OSError if it left."""
    deadline = time.monotonic() + PATIENCE
    received = b""
    while b"\n" not in received and len(received) <= LARGEST_REQUEST:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        if not (chunk := connection.recv(LARGEST_REQUEST + 1)):
            break
        received += chunk
    return received[: LARGEST_REQUEST + 1]
