"""Small pieces of an ASGI application: routes, headers of every answer, short answers."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


def make_app(routes: Sequence[Route]) -> Starlette:
    """Serve these paths only: an additional slash is 404, not a redirect to a host that the client named."""
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    return app


class WithHeaders:
    """Adds the date and `headers` to every answer; they replace the app's headers of the same name."""

    def __init__(self, app: ASGIApp, headers: Mapping[str, str]) -> None:
        self._app = app
        self.headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        added = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        names = {name for name, _ in added}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [pair for pair in message["headers"] if pair[0] not in names]
                date = (b"date", formatdate(usegmt=True).encode())
                message = {**message, "headers": [date, *own, *added]}
            await send(message)

        await self._app(scope, receive, send_with_headers)


async def answer(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    """Send a short plain-text answer."""
    body = f"{text}\n".encode()
    kind = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*kind, *headers]})
    await send({"type": "http.response.body", "body": body})


def client_group(host: str) -> str:
    """Return the address, or its /64 network for IPv6: one client can use any address of it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a Unix socket has none
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return host
