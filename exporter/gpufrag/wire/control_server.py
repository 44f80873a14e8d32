"""The server of a control socket: proof of life, and a few commands. One request, one answer, each a line of JSON.

    {"command": "ping"}  ->  {"ok": true, …}
    on an error          ->  {"ok": false, "error": "…"}

The kernel accepts connections even while the interpreter is busy, so a process lives if its socket accepts one.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import GpufragError
from . import descriptors
from .error_counter import ErrorCounter
from .folder import draft_name
from .threads import start_thread

Command = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From the request to the fields of the answer; raises GpufragError with the text of the error answer."""

MAX_REQUEST = 4096
CALLER_TIMEOUT_S = 2.0
"""A caller must send its request, and take its answer, within this time."""
MAX_CALLERS = 64
"""One more drops the caller that has been silent longest."""
MAX_COMMANDS = 8
"""Commands that run at the same time, each in its own thread."""
IDLE_CHECK_S = 10.0
RETRY_S = 1.0


@dataclass
class _Caller:
    """A connection whose request is not complete. `deadline` is in seconds of the monotonic clock."""

    connection: socket.socket
    inode: int
    deadline: float
    received: bytes = b""


class ControlServer:
    """Listens at `path` until closed. One thread reads all requests, so a silent caller delays no other.

    `mode` is the socket's mode; None: everyone who may write to its folder may connect. Raises OSError if it cannot
    listen, RuntimeError if the system has no thread for it.
    """

    def __init__(
        self, path: Path, commands: Mapping[str, Command], errors: ErrorCounter, mode: int | None = None
    ) -> None:
        self.path, self._commands, self._errors = path, commands, errors
        self._closed = threading.Event()
        self._command_slots = threading.BoundedSemaphore(MAX_COMMANDS)
        self._callers: dict[int, _Caller] = {}
        self._socket, self._inode = _listen(path, mode)
        self._socket_inode = descriptors.inode_of(self._socket)
        self._selector = selectors.PollSelector()  # has no descriptor of its own
        self._selector.register(self._socket, selectors.EVENT_READ)
        try:
            self._thread = start_thread(self._serve, "gpufrag-control")
        except RuntimeError:
            self._selector.close()
            self._socket.close()
            path.unlink(missing_ok=True)
            raise

    @property
    def reachable(self) -> bool:
        """False once the socket is closed, or its name is gone after a clean-up of the temporary directory."""
        try:
            return self._is_open() and self.path.lstat().st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Stop listening, and remove the socket's name unless another process has taken it."""
        self._closed.set()
        with contextlib.suppress(OSError):
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        if self._is_open():
            with contextlib.suppress(OSError):  # not connected, but it wakes the thread in select
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(RETRY_S)
        descriptors.close(self._socket, self._socket_inode)

    def abandon(self) -> None:
        """Close the parent's sockets in a forked child, so that they do not outlive the parent."""
        descriptors.close(self._socket, self._socket_inode)
        for caller in self._callers.values():
            with contextlib.suppress(OSError):
                descriptors.close(caller.connection, caller.inode)

    def _is_open(self) -> bool:
        return descriptors.is_open(self._socket, self._socket_inode)

    def _serve(self) -> None:
        while not self._closed.is_set() and self._is_open():
            try:
                self._serve_ready()
            except OSError:  # no free descriptor
                self._closed.wait(RETRY_S)
            except Exception as error:
                self._errors.note("control", error, "this request was not read")
        for caller in list(self._callers.values()):
            self._drop(caller)
        self._selector.close()

    def _serve_ready(self) -> None:
        deadline = min((caller.deadline for caller in self._callers.values()), default=None)
        # closing our descriptor from elsewhere does not wake the selector, so it needs a timeout
        wait = IDLE_CHECK_S if deadline is None else max(0.0, min(IDLE_CHECK_S, deadline - time.monotonic()))
        for key, _ in self._selector.select(wait):
            if not self._is_open():  # meanwhile the program has closed it, and may use its number
                return
            if key.fileobj is self._socket:
                self._accept()
            elif caller := self._callers.get(key.fd):
                self._receive(caller)
        for caller in list(self._callers.values()):
            if caller.deadline <= time.monotonic():
                self._drop(caller)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:  # the caller has left
            return
        if len(self._callers) == MAX_CALLERS:
            self._drop(next(iter(self._callers.values())))
        connection.setblocking(False)
        inode, deadline = descriptors.inode_of(connection), time.monotonic() + CALLER_TIMEOUT_S
        caller = self._callers[connection.fileno()] = _Caller(connection, inode, deadline)
        self._selector.register(connection, selectors.EVENT_READ)
        self._receive(caller)  # most requests are there already

    def _receive(self, caller: _Caller) -> None:
        """A request is complete at its newline, at the end of the connection, or when it is too long."""
        if not descriptors.is_open(caller.connection, caller.inode):  # its number may be the program's now
            self._drop(caller)
            return
        try:
            chunk = caller.connection.recv(MAX_REQUEST + 1)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        caller.received += chunk
        if not chunk and not caller.received:  # it only asked whether the process lives
            self._drop(caller)
        elif not chunk or b"\n" in chunk or len(caller.received) > MAX_REQUEST:
            self._release(caller)
            self._start_command(caller)

    def _release(self, caller: _Caller) -> None:
        del self._callers[caller.connection.fileno()]
        self._selector.unregister(caller.connection)

    def _drop(self, caller: _Caller) -> None:
        self._release(caller)
        descriptors.close(caller.connection, caller.inode)

    def _start_command(self, caller: _Caller) -> None:
        if not self._command_slots.acquire(blocking=False):
            _send(caller, _error(f"busy with {MAX_COMMANDS} other commands; try again later"))
            return
        try:
            start_thread(self._run_command, "gpufrag-answer", caller)
        except RuntimeError:  # the container's limit, or the interpreter is ending
            self._command_slots.release()
            _send(caller, _error("the process cannot start another thread; try again later"))

    def _run_command(self, caller: _Caller) -> None:
        try:
            _send(caller, self._answer(caller.received[: MAX_REQUEST + 1]))
        finally:
            self._command_slots.release()

    def _answer(self, line: bytes) -> Mapping[str, Any]:
        try:
            request = json.loads(line)
            return {"ok": True, **self._command(request)(request)}
        except (ValueError, RecursionError):
            return _error(f"not a request: expected one line of JSON of up to {MAX_REQUEST} bytes")
        except GpufragError as error:
            return _error(str(error))
        except Exception as error:  # a bug in a command must not reach the job
            self._errors.note("control", error, "this command failed")
            return _error(f"internal error in gpufrag ({type(error).__name__}); see the job's log")

    def _command(self, request: Any) -> Command:
        name = request.get("command") if isinstance(request, dict) else None
        command = self._commands.get(name) if isinstance(name, str) else None
        if command is None:
            raise GpufragError(f"unknown command {name!r:.80}; expected one of {', '.join(sorted(self._commands))}")
        return command


def _listen(path: Path, mode: int | None) -> tuple[socket.socket, int]:
    """Return a socket that listens at `path` from the moment its name appears, and its inode.

    Others may rename and replace files in its folder. So it is bound inside a private folder, gets its mode there, and
    is then moved to `path`.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mode = _mode(path.parent) if mode is None else mode
        with _private_folder(path) as (private, address):
            listener.bind(address)
            os.chmod(_NAME, mode, dir_fd=private)
            listener.setblocking(False)
            listener.listen(MAX_CALLERS)
            inode = os.stat(_NAME, dir_fd=private).st_ino
            os.replace(_NAME, path, src_dir_fd=private)
    except BaseException:
        listener.close()
        raise
    return listener, inode


_NAME = "s"


@contextlib.contextmanager
def _private_folder(path: Path) -> Iterator[tuple[int, str]]:
    """A new folder next to `path` that only this user may change: its descriptor, and the address of a socket in it."""
    private = path.with_name(draft_name(path.name))
    private.mkdir(mode=0o700)
    try:
        descriptor = os.open(private, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise PermissionError(f"{private}: another user replaced this folder")
            through_descriptor = os.path.isdir("/proc/self/fd")  # then the address is short too
            yield descriptor, f"/proc/self/fd/{descriptor}/{_NAME}" if through_descriptor else str(private / _NAME)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(_NAME, dir_fd=descriptor)
            os.close(descriptor)
    finally:
        with contextlib.suppress(OSError):
            private.rmdir()


def _mode(folder: Path) -> int:
    """Let those connect who may write to the folder: they could replace the socket anyway."""
    mode = folder.stat().st_mode
    return 0o600 if mode & stat.S_ISVTX else 0o600 | mode & 0o022 | (mode & 0o022) << 1


def _error(text: str) -> Mapping[str, Any]:
    return {"ok": False, "error": text}


def _send(caller: _Caller, answer: Mapping[str, Any]) -> None:
    try:
        if descriptors.is_open(caller.connection, caller.inode):  # a command may take long
            caller.connection.settimeout(CALLER_TIMEOUT_S)
            caller.connection.sendall(json.dumps(answer).encode() + b"\n", socket.MSG_NOSIGNAL)
    except OSError:  # the caller has left
        pass
    finally:
        descriptors.close(caller.connection, caller.inode)
