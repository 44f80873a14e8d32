"""Headers that go with every answer of an ASGI app."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class WithHeaders:
    """Adds `headers`; one of the same name that the app gave is replaced."""

    def __init__(self, app: ASGIApp, headers: Mapping[str, str]) -> None:
        self._app = app
        self.headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.headers:
            await self._app(scope, receive, send)
            return
        added = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        names = {name for name, _ in added}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [pair for pair in message["headers"] if pair[0] not in names]
                message = {**message, "headers": own + added}
            await send(message)

        await self._app(scope, receive, send_with_headers)
