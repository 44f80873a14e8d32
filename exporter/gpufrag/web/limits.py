"""Bounds on what a client can take: the time of a connection, the size of a request, the number of requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import h11
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..logs import event
from ..units import format_duration
from .asgi import answer, client_group

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ..config.sidecar import WebSettings

PROBE_SLOTS = 4
log = logging.getLogger(__name__)
_ABSOLUTE = re.compile(rb"https?://[^/]*", re.IGNORECASE)
_CLOSE = (b"connection", b"close")  # the rest of the request is not read
_RETRY = (b"retry-after", b"1")


def unavailable(reason: bytes) -> bytes:
    """Return a whole 503 answer, for connections that never reach the application."""
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
        b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n\r\n%s" % (len(reason), reason)
    )


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with a deadline for each request.

    uvicorn waits for ever for headers that trickle in and for a client that does not read its answer.
    """

    def __init__(self, *args: Any, settings: WebSettings, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._settings = settings
        self._deadline: asyncio.TimerHandle | None = None
        self.admitted = False
        """Whether a request of this connection passed authentication."""
        self.lost: asyncio.Future[None] = self.loop.create_future()

    @property
    def busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)
        if not self.lost.done():
            self.lost.set_result(None)

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
        self.admitted |= self.cycle is not None and bool(self.cycle.scope["state"].get("admitted"))
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
        """A slow client is cut off silently; a slow answer of ours is logged and answered with 503."""
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.response_started:
            self.transport.abort()
            return
        after = format_duration(self._settings.request_timeout)
        event(log, logging.WARNING, "request timed out", path=cycle.scope["path"], after=after)
        cycle.disconnected = True  # what the app sends later goes nowhere
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # close() would wait until the client has read what came before
        else:
            self.transport.write(unavailable(b"the answer took too long\n"))
            self.transport.close()


class RequestChecks:
    """Refuses requests by their head: 405 method, 413 body, 421 host, 431 size."""

    def __init__(
        self, app: ASGIApp, settings: WebSettings, methods: tuple[str, ...], max_body: int, open_paths: frozenset[str]
    ) -> None:
        self._app, self._methods, self._max_body, self._open_paths = app, methods, max_body, open_paths
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = _origin_form(scope)
        refusal = self._refusal(scope)
        if refusal is not None:
            await answer(send, *refusal)
            return
        # ended by the server, which logged it, or by the client; uvicorn would log a traceback
        with contextlib.suppress(asyncio.CancelledError, ClientDisconnect):
            await self._app(scope, _BoundedBody(receive, self._max_body), send)

    def _refusal(self, scope: Scope) -> tuple[int, str, tuple[bytes, bytes]] | None:
        headers = scope["headers"]
        if scope["method"] not in self._methods:
            return 405, "method not allowed", (b"allow", ", ".join(self._methods).encode())
        head = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(n) + len(v) + 4 for n, v in headers)
        if head > self.settings.max_header_size:
            return 431, "the headers are too large", _CLOSE
        # h11 has checked that there is at most one content-length, and that it is a number
        if next((int(value) for name, value in headers if name == b"content-length"), 0) > self._max_body:
            return 413, "the body is too large", _CLOSE
        if scope["path"] not in self._open_paths and not self._allows_host(headers):
            return 421, "this Host is not in web.allowed_hosts", _CLOSE
        return None

    def _allows_host(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Refuse names that an attacker's DNS may point here: a browser sends them in Host."""
        allowed = self.settings.allowed_hosts
        if not allowed:
            return True
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        names = [re.sub(r":\d*$", "", host).strip("[]").lower() for host in hosts]
        return bool(names) and all(name in {one.strip("[]").lower() for one in allowed} for name in names)


class RequestSlots:
    """Answers 503 if too many requests are being handled, in total or from one address.

    Probes have slots of their own. Authentication comes before, so that wrong passwords take no slot.
    """

    def __init__(self, app: ASGIApp, settings: WebSettings, open_paths: frozenset[str]) -> None:
        self._app, self._open_paths = app, open_paths
        self._probes = 0
        self._by_address: Counter[str] = Counter()
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in self._open_paths:
            if self._probes >= PROBE_SLOTS:
                await answer(send, 503, "too many requests", _RETRY)
                return
            self._probes += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._probes -= 1
            return
        address = client_group((scope.get("client") or ("",))[0])
        most = self.settings.max_requests
        if self._by_address.total() >= most or self._by_address[address] >= max(1, most * 3 // 4):
            await answer(send, 503, "too many requests", _RETRY)
            return
        self._by_address[address] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._by_address[address] -= 1
            self._by_address += Counter()  # drops addresses without requests


class _BoundedBody:
    """The app's `receive`, counting bytes: a chunked body does not announce its length."""

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
    """Turn `GET http://host/path`, the form for proxies, into `GET /path` (RFC 9112, 3.2.2)."""
    absolute = _ABSOLUTE.match(scope["raw_path"])
    if absolute is None:
        return scope
    path = scope["raw_path"][absolute.end() :] or b"/"
    return {**scope, "raw_path": path, "path": unquote(path.decode("ascii"))}
