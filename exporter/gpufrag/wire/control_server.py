"""The control socket: proof of life, and a few commands. One request, one answer, each a line of JSON.

    {"command": "ping"}  ->  {"ok": true, …}
    anything else        ->  {"ok": false, "error": "…"}

That a connection is accepted proves that the process lives; the kernel does it, even while the interpreter is busy.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import GpufragError
from .error_counter import ErrorCounter
from .folder import socket_address

Command = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From the request to the answer's fields; raises GpufragError for what the caller is to be told."""

LARGEST_REQUEST = 4096
PATIENCE = 2.0
"""Seconds in which a caller must have sent its request, and must take its answer."""
CALLERS = 64
"""Heard at once; where one more comes, the one that has been silent longest is dropped."""
ANSWERING = 8
"""Commands carried out at once, each in a thread of its own; a caller above that is told to come again."""
ERROR_PAUSE = 1.0


@dataclass
class Caller:
    """Somebody who has not said all of a request yet. `deadline` is of the monotonic clock."""

    connection: socket.socket
    deadline: float
    received: bytes = b""


class Control:
    """Listens at `path` until closed. One thread hears all callers, so that a silent one keeps nobody waiting.

    `mode` is the socket's; None: for those who may write to its folder. Raises OSError or Unavailable where it cannot
    listen, and RuntimeError where the system has no thread for it.
    """

    def __init__(
        self, path: Path, commands: Mapping[str, Command], trouble: ErrorCounter, mode: int | None = None
    ) -> None:
        self.path, self._commands, self._trouble = path, commands, trouble
        self._closed = threading.Event()
        self._answering = threading.BoundedSemaphore(ANSWERING)
        self._callers: dict[int, Caller] = {}
        self._socket = _listen(path, mode)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._inode = path.stat().st_ino
        self._thread = threading.Thread(target=self._serve, name="gpufrag-control", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads are to be had: who reads must not wait for an answer
            self._selector.close()
            self._socket.close()
            path.unlink(missing_ok=True)
            raise

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
        with contextlib.suppress(OSError):  # not connected: it is the thread in select that is to be woken
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(ERROR_PAUSE)
        self._socket.close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's sockets, which must not outlive the parent, and of nothing else."""
        self._socket.close()
        for caller in self._callers.values():
            caller.connection.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                self._hear()
            except OSError:  # no descriptor is free
                self._closed.wait(ERROR_PAUSE)
            except Exception as error:
                self._trouble.note("control", error, "this caller was not heard")
        for caller in list(self._callers.values()):
            self._drop(caller)
        self._selector.close()

    def _hear(self) -> None:
        deadlines = [caller.deadline for caller in self._callers.values()]
        patience = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        for key, _ in self._selector.select(patience):
            if key.fileobj is self._socket:
                self._admit()
            elif caller := self._callers.get(key.fd):
                self._listen_to(caller)
        for caller in list(self._callers.values()):
            if caller.deadline <= time.monotonic():
                self._drop(caller)

    def _admit(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:  # left before it was its turn
            return
        if len(self._callers) == CALLERS:
            self._drop(next(iter(self._callers.values())))
        connection.setblocking(False)
        caller = self._callers[connection.fileno()] = Caller(connection, time.monotonic() + PATIENCE)
        self._selector.register(connection, selectors.EVENT_READ)
        self._listen_to(caller)  # most have spoken already

    def _listen_to(self, caller: Caller) -> None:
        """Takes what has come; the request is complete with its newline, with the end, or where it is too long."""
        try:
            chunk = caller.connection.recv(LARGEST_REQUEST + 1)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        caller.received += chunk
        if not chunk and not caller.received:  # only knocked
            self._drop(caller)
        elif not chunk or b"\n" in caller.received or len(caller.received) > LARGEST_REQUEST:
            self._release(caller)
            self._converse(caller)

    def _release(self, caller: Caller) -> None:
        del self._callers[caller.connection.fileno()]
        self._selector.unregister(caller.connection)

    def _drop(self, caller: Caller) -> None:
        self._release(caller)
        caller.connection.close()

    def _converse(self, caller: Caller) -> None:
        if not self._answering.acquire(blocking=False):
            _send(caller.connection, {"ok": False, "error": f"busy with {ANSWERING} other commands; ask again later"})
            return
        thread = threading.Thread(target=self._carry_out, args=(caller,), name="gpufrag-answer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the limit of the container, or the interpreter is ending
            self._answering.release()
            _send(caller.connection, {"ok": False, "error": "the process can have no more threads; ask again later"})

    def _carry_out(self, caller: Caller) -> None:
        try:
            _send(caller.connection, self._answer(caller.received[: LARGEST_REQUEST + 1]))
        finally:
            self._answering.release()

    def _answer(self, line: bytes) -> Mapping[str, Any]:
        try:
            request = json.loads(line)
            return {"ok": True, **self._command(request)(request)}
        except (ValueError, RecursionError):
            return {"ok": False, "error": "not a request: it must be one line of JSON of up to 4096 bytes"}
        except GpufragError as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:  # a command's fault is not the trainer's
            self._trouble.note("control", error, "this command was not carried out")
            return {"ok": False, "error": f"a fault in gpufrag itself ({type(error).__name__}); see the job's log"}

    def _command(self, request: Any) -> Command:
        name = request.get("command") if isinstance(request, dict) else None
        command = self._commands.get(name) if isinstance(name, str) else None
        if command is None:
            raise GpufragError(f"no such command: {name!r}; there are {', '.join(sorted(self._commands))}")
        return command


def _listen(path: Path, mode: int | None) -> socket.socket:
    """A socket that listens from the moment its name appears. Raises OSError or Unavailable where it cannot."""
    unfinished = path.with_name(f".{path.stem[-40:]}.tmp")
    unfinished.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(unfinished) as address:
            listener.bind(address)
        unfinished.chmod(_mode(path.parent) if mode is None else mode)
        listener.setblocking(False)
        listener.listen(CALLERS)
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


def _send(connection: socket.socket, answer: Mapping[str, Any]) -> None:
    with connection, contextlib.suppress(OSError):  # one who does not take the answer does not need it
        connection.settimeout(PATIENCE)
        connection.sendall(json.dumps(answer).encode() + b"\n")
