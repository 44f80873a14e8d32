"""Bounds on what a client can take: the time of a connection, the size of a request, the requests in work."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import h11
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..logs import event
from ..units import format_duration

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ..config.sidecar import WebSettings


def _unavailable(why: bytes) -> bytes:
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
        b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n\r\n%s" % (len(why), why)
    )


_BUSY, _LATE = _unavailable(b"too many open connections\n"), _unavailable(b"the answer took too long\n")
log = logging.getLogger(__name__)
_ABSOLUTE = re.compile(rb"https?://[^/]*", re.IGNORECASE)
_CLOSE = (b"connection", b"close")  # what is left of the request is not read


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, with a deadline for each request and a bound on connections.

    uvicorn waits for ever for a head that trickles in and for a client that does not read its answer.
    """

    def __init__(self, *args: Any, settings: WebSettings, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._settings = settings
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._settings.max_connections:
            transport.write(_BUSY)
            transport.close()
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        idle = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if idle and self.conn.our_state is h11.IDLE:
            self._disarm()
        elif not self.transport.is_closing():
            self._arm()

    def on_response_complete(self) -> None:
        self._disarm()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # close() would wait until the client has read
        else:
            super().timeout_keep_alive_handler()

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._settings.request_timeout, self._give_up)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        """The client's fault ends the connection, and no more; where it is ours, both sides are told."""
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.response_started:
            self.transport.abort()
            return
        after = format_duration(self._settings.request_timeout)
        event(log, logging.WARNING, "an answer took too long and is given up", path=cycle.scope["path"], after=after)
        cycle.disconnected = True  # what the app says later is for nobody
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # close() would wait until the client has read what came before
        else:
            self.transport.write(_LATE)
            self.transport.close()


def protocol(settings: WebSettings) -> Any:
    """What uvicorn's `http=` takes: makes a protocol for each connection."""
    return functools.partial(BoundedProtocol, settings=settings)


class Bounds:
    """Answers 503 when too many requests are in work, 431 for a huge head, 413 for a body over `max_body` bytes.

    A method that is not in `methods` is answered 405, before anything is read or checked.
    """

    def __init__(self, app: ASGIApp, settings: WebSettings, methods: tuple[str, ...], max_body: int = 0) -> None:
        self._app = app
        self._methods = methods
        self._max_body = max_body
        self._working = 0
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = _origin_form(scope)
        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        self._working += 1
        try:
            await self._app(scope, _Body(receive, self._max_body), send)
        except (asyncio.CancelledError, ClientDisconnect):
            pass  # cut off at the server's end, which has told it, or by the client; uvicorn would call it a fault
        finally:
            self._working -= 1

    def _refusal(self, scope: Scope) -> tuple[int, bytes, tuple[bytes, bytes]] | None:
        """Status, text and the header that goes with it."""
        headers = scope["headers"]
        if scope["method"] not in self._methods:
            return 405, b"method not allowed\n", (b"allow", ", ".join(self._methods).encode())
        head = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(n) + len(v) + 4 for n, v in headers)
        if head > self.settings.max_header_size:
            return 431, b"the head of the request is too large\n", _CLOSE
        if _declared_length(headers) > self._max_body:
            return 413, b"the body is too large\n", _CLOSE
        if self._working >= self.settings.max_requests:
            return 503, b"too many requests at once\n", (b"retry-after", b"1")
        return None


class _Body:
    """The app's `receive`, which counts what passes: a body in chunks does not tell its length beforehand."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._left = most

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise HTTPException(413, headers={"connection": "close"})
        return message


def _origin_form(scope: Scope) -> Scope:
    """`GET http://host/path`, as one asks a proxy, is `GET /path` to the server itself (RFC 9112, 3.2.2)."""
    absolute = _ABSOLUTE.match(scope["raw_path"])
    if absolute is None:
        return scope
    path = scope["raw_path"][absolute.end() :] or b"/"
    return {**scope, "raw_path": path, "path": unquote(path.decode("ascii"))}


def _declared_length(headers: list[tuple[bytes, bytes]]) -> int:
    """h11 has checked that it is a number, and only one."""
    return next((int(value) for name, value in headers if name == b"content-length"), 0)


async def _answer(send: Send, status: int, text: bytes, header: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode()), header]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
