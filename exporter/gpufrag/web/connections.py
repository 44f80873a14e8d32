"""Accept connections, and keep their number within bounds from the moment they are accepted.

asyncio's own server counts nothing, and a TLS connection reaches its protocol only after the handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..logs import event
from .asgi import client_group
from .limits import BoundedProtocol, unavailable
from .listen import BACKLOG

if TYPE_CHECKING:
    from ..config.sidecar import WebSettings

ACCEPT_AGAIN_S = 1.0
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Connection:
    address: str
    protocol: BoundedProtocol
    unused: socket.socket | None
    """The socket, until a transport owns it."""
    task: asyncio.Task[None] | None = None
    since: float = field(default_factory=time.monotonic)


class Connections:
    """The connections of one listener.

    If there are `max_connections`, a new one replaces one that handles no request: first those that never passed
    authentication, of the address that has the most, the oldest. So silent connections cannot lock out a scrape.
    """

    def __init__(
        self, listener: socket.socket, settings: WebSettings, make_protocol: Callable[[], BoundedProtocol]
    ) -> None:
        self._listener, self._make_protocol = listener, make_protocol
        self._open: set[_Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self.settings = settings
        self.context: ssl.SSLContext | None = None
        """TLS of connections accepted from now on; None is plain HTTP."""

    def __len__(self) -> int:
        return len(self._open)

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._accept_all)

    async def stop(self, hurry: asyncio.Event) -> int:
        """Accept no more, and wait for running requests: for `drain_timeout`, or until `hurry` is set.

        Return how many requests it cut off then.
        """
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for connection in list(self._open):
            if connection.protocol.transport is None:  # the handshake is not done
                self._close(connection)
            else:
                connection.protocol.shutdown()
        waits = [asyncio.ensure_future(one.wait()) for one in (self._empty, hurry)]
        await asyncio.wait(waits, timeout=self.settings.drain_timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        cut_off = sum(connection.protocol.busy for connection in self._open)
        for connection in list(self._open):
            self._close(connection)
        return cut_off

    def _accept_all(self) -> None:
        for _ in range(BACKLOG):
            try:
                connected, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                event(log, logging.ERROR, "cannot accept connections", reason=error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener)
                loop.call_later(ACCEPT_AGAIN_S, self._accept_again)
                return
            connected.setblocking(False)
            self._take(connected, client_group(peer[0]))

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self.start()

    def _take(self, connected: socket.socket, address: str) -> None:
        if len(self._open) >= self.settings.max_connections and not self._evict():
            if self.context is None:
                with contextlib.suppress(OSError):
                    connected.send(unavailable(b"too many open connections\n"))
            connected.close()
            return
        connection = _Connection(address, self._make_protocol(), connected)
        self._open.add(connection)
        self._empty.clear()
        connection.task = asyncio.create_task(self._serve(connection, connected))
        connection.task.add_done_callback(lambda task: self._forget(connection))

    async def _serve(self, connection: _Connection, connected: socket.socket) -> None:
        connection.unused = None
        timeout = self.settings.request_timeout if self.context else None
        with contextlib.suppress(OSError):  # of a handshake that failed or took too long
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection.protocol, connected, ssl=self.context, ssl_handshake_timeout=timeout
                )
            except asyncio.CancelledError:
                connected.shutdown(socket.SHUT_RDWR)  # a transport that was just made ignores being closed
                raise
            await connection.protocol.lost

    def _forget(self, connection: _Connection) -> None:
        if connection.unused is not None:  # cancelled before it began
            connection.unused.close()
        self._open.discard(connection)
        if not self._open:
            self._empty.set()

    def _evict(self) -> bool:
        """Close one connection that handles no request; return whether there was one."""
        waiting = [one for one in self._open if not one.protocol.busy]
        if not waiting:
            return False
        per_address = Counter(one.address for one in self._open)
        first = min(waiting, key=lambda one: (one.protocol.admitted, -per_address[one.address], one.since))
        self._close(first)
        self._open.discard(first)  # its place is free at once
        return True

    def _close(self, connection: _Connection) -> None:
        if connection.protocol.transport is not None:
            connection.protocol.transport.abort()
        elif connection.task is not None:
            connection.task.cancel()
