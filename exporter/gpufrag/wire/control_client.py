"""The client of a control socket: one line of JSON out, one line of JSON in, before a deadline.

The sockets lie in a folder that other users may write to, so no answer is trusted: its size and its time are bounded,
and a link is not followed.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import stat
import struct
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import Unavailable
from . import codec

ANSWER_WITHIN_S = 3.0
"""A process answers at once unless its interpreter is busy."""
MAX_ANSWER = 64 << 10
MAX_OPEN = 256
"""Sockets open at the same time; the others wait their turn."""
RETRY_S = 0.01
_NOT_LISTENING = frozenset({errno.ECONNREFUSED, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EPROTOTYPE})
_DENIED = frozenset({errno.EACCES, errno.EPERM})

_CREDENTIALS = struct.Struct("3i")

Answer = Mapping[str, Any]


class ControlError(Unavailable):
    """The request got no usable answer."""


class NotListening(ControlError):
    """No process listens on the socket: the process has ended."""


class Impostor(NotListening):
    """Another process than the expected one listens on the socket."""


class AccessDenied(ControlError):
    """This user may not connect to the socket."""


class NoAnswer(ControlError):
    """The process did not answer in time, or not with one line of JSON."""


class Rejected(ControlError):
    """The process answered with an error; the text is that error."""


def ask(
    path: Path,
    request: Mapping[str, Any],
    within_s: float = ANSWER_WITHIN_S,
    max_answer: int = MAX_ANSWER,
    pid: int | None = None,
) -> Answer:
    """Return the answer to `request`. Raises ControlError, also if `pid` is given and another process listens."""
    outcome = ask_all([path], request, within_s, max_answer, {path: pid} if pid is not None else {})[path]
    if isinstance(outcome, ControlError):
        raise outcome
    return outcome


def ask_all(
    paths: Sequence[Path],
    request: Mapping[str, Any],
    within_s: float = ANSWER_WITHIN_S,
    max_answer: int = MAX_ANSWER,
    pids: Mapping[Path, int] = MappingProxyType({}),
) -> dict[Path, Answer | ControlError]:
    """Send `request` to every socket at once; return each one's answer, or why there is none.

    Each socket has `within_s` seconds from its connect, so a silent one delays no other. Uses no threads. `pids` are
    the processes that must listen; anyone who may write to the folder can bind a socket with any name.
    """
    line = json.dumps(request).encode() + b"\n"
    outcomes: dict[Path, Answer | ControlError] = {}
    waiting = list(reversed(paths))
    running: dict[_Exchange, float] = {}
    with selectors.PollSelector() as selector:
        while waiting or running:
            while waiting and len(running) < MAX_OPEN:
                path = waiting.pop()
                running[_Exchange(path, line, within_s, max_answer, pids.get(path), selector)] = 0.0
            until = min(running.values())
            ready = {key.data for key, _ in selector.select(max(0.0, until - time.monotonic()))}
            for exchange, due in list(running.items()):
                if exchange in ready or time.monotonic() >= due:
                    running[exchange] = exchange.advance()
                if exchange.outcome is not None:
                    outcomes[exchange.path] = exchange.outcome
                    del running[exchange]
    return outcomes


def listens(path: Path) -> bool:
    """Return whether a process listens on the socket. Raises PermissionError if this user may not connect.

    The kernel accepts the connection, so a process that hangs listens too.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        code = _connect(connection, path)
    if code in _DENIED:
        raise PermissionError(code, os.strerror(code), str(path))
    return code not in _NOT_LISTENING  # EAGAIN: its queue is full


class _Exchange:
    """One request to one socket. `outcome` is None until it has ended."""

    def __init__(
        self,
        path: Path,
        line: bytes,
        within_s: float,
        max_answer: int,
        pid: int | None,
        selector: selectors.BaseSelector,
    ) -> None:
        self.path, self._within_s, self._pid, self._selector = path, within_s, pid, selector
        self.outcome: Answer | ControlError | None = None
        self._deadline = time.monotonic() + within_s
        self._steps = self._converse(line, max_answer)

    def advance(self) -> float:
        """Do what needs no waiting; return the monotonic time of the next call, unless the socket is ready earlier."""
        try:
            retries = next(self._steps)
        except StopIteration as end:
            self.outcome = end.value
        except ControlError as error:
            self.outcome = error
        except OSError as error:
            self.outcome = NoAnswer(f"{self.path.name}: no answer ({error.strerror or error})")
        else:
            if time.monotonic() < self._deadline:
                return min(self._deadline, time.monotonic() + RETRY_S) if retries else self._deadline
            self._steps.close()
            self.outcome = NoAnswer(f"{self.path.name}: no answer within {self._within_s:g} s")
        return self._deadline

    def _converse(self, line: bytes, max_answer: int) -> Generator[bool, None, Answer]:
        """Yields whenever it has to wait: False for the socket to become ready, True for a moment."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            while code := _connect(connection, self.path):
                if code != errno.EAGAIN:
                    raise _refusal(self.path.name, code)
                yield True  # its queue is full
            if self._pid is not None:
                listener, _, _ = _CREDENTIALS.unpack(
                    connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                )
                if listener != self._pid:  # 0: a process of another pid namespace
                    raise Impostor(f"{self.path.name}: process {listener} listens there, not {self._pid}")
            self._selector.register(connection, selectors.EVENT_WRITE, self)
            try:
                while line:
                    try:
                        line = line[connection.send(line, socket.MSG_NOSIGNAL) :]
                    except BlockingIOError:
                        yield False
                self._selector.modify(connection, selectors.EVENT_READ, self)
                answer = bytearray()
                while len(answer) <= max_answer:
                    try:
                        chunk = connection.recv(max_answer + 1)
                    except BlockingIOError:
                        yield False
                        continue
                    answer += chunk
                    if not chunk or b"\n" in chunk:
                        return _parse(self.path.name, bytes(answer))
            finally:
                self._selector.unregister(connection)
        raise NoAnswer(f"{self.path.name}: its answer is larger than {max_answer} bytes")


def _connect(connection: socket.socket, path: Path) -> int:
    """Connect to the socket at `path`, which may not be a link; return the error's number or 0."""
    try:
        with _address(path) as address:
            return connection.connect_ex(address)
    except OSError as error:
        return error.errno or errno.EIO


@contextmanager
def _address(path: Path) -> Iterator[str]:
    if not os.path.isdir("/proc/self/fd"):
        yield str(path)
        return
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "not a socket")
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _refusal(name: str, code: int) -> ControlError:
    if code in _DENIED:
        return AccessDenied(f"{name}: {os.strerror(code)}")
    if code in _NOT_LISTENING:
        return NotListening(f"{name}: no process listens there")
    return NoAnswer(f"{name}: {os.strerror(code)}")


def _parse(name: str, line: bytes) -> Answer:
    if not line:
        raise NoAnswer(f"{name}: closed the connection without an answer")
    try:
        answer = codec.loads(line)
    except (ValueError, RecursionError):
        raise NoAnswer(f"{name}: its answer is not JSON") from None
    if not isinstance(answer, dict):
        raise NoAnswer(f"{name}: its answer is not a JSON object")
    if answer.get("ok") is not True:
        raise Rejected(f"{answer.get('error')!s:.300}")
    return answer
