"""What callers meet: alerts come in and are answered at once; decisions can be read, and the circuit closed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..errors import BadInput, NewerVersion
from ..logs import event
from ..web.asgi import make_app
from ..web.executor import SerialExecutor
from ..web.html import HEADERS
from ..web.runner import Service
from . import decisions, page
from .alerts import MAX_BODY, Alert, parse
from .circuit import STORE_ERRORS
from .decisions import Decision, Recorder
from .fuse import Fuse
from .metrics import CALLS, Metrics

FORBIDDEN = PlainTextResponse("not from a web page\n", 403)
RETRY_AFTER = {"retry-after": "5"}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Webhook:
    """The routes of the port that Alertmanager calls."""

    offer: Callable[[Iterable[Alert]], bool]
    recorder: Recorder
    fuse: Fuse
    metrics: Metrics
    now: Callable[[], float]
    blocking: SerialExecutor = field(default_factory=lambda: SerialExecutor("gpufrag-circuit"))

    def service(self) -> Service:
        """Without background, token or start; see `server`."""
        routes = [
            Route("/", self._page, methods=["GET"]),
            Route("/v1/alerts", self._alerts, methods=["POST"]),
            Route("/v1/decisions", self._decisions, methods=["GET"]),
            Route("/v1/circuit/close", self._close, methods=["POST"]),
        ]
        return Service(make_app(routes), methods=("GET", "HEAD", "POST"), max_body=MAX_BODY)

    async def _alerts(self, request: Request) -> Response:
        """202 and nothing else says that they will be looked at; Alertmanager sends them again after any other."""
        if _from_a_page(request):
            return FORBIDDEN
        try:
            alerts = parse(await request.body())
        except BadInput as error:
            self.metrics.count(CALLS, "version" if isinstance(error, NewerVersion) else "malformed")
            event(log, logging.WARNING, "a call of the webhook was refused", reason=error)
            return PlainTextResponse(f"{error}\n", 400)
        if not self.offer(alerts):
            self.metrics.count(CALLS, "full")
            return PlainTextResponse("too many alerts wait\n", 503, headers=RETRY_AFTER)
        self.metrics.count(CALLS, "accepted")
        return PlainTextResponse("accepted\n", 202)

    async def _decisions(self, request: Request) -> Response:
        return JSONResponse([one.as_json() for one in self.recorder.latest()], headers={"cache-control": "no-store"})

    async def _page(self, request: Request) -> Response:
        body = page.render(self.recorder.latest(), self.now(), self.metrics)
        return Response(body, headers=HEADERS)

    async def _close(self, request: Request) -> Response:
        """For a person, whom the server has let in."""
        if _from_a_page(request):
            return FORBIDDEN
        who = request.client.host if request.client else "somebody"
        try:
            await self.blocking.run(self.fuse.close)
        except STORE_ERRORS as error:
            return PlainTextResponse(f"the circuit could not be closed: {error}\n", 503, headers=RETRY_AFTER)
        text = f"The circuit was closed by a call from {who}."
        self.recorder.tell(Decision(self.now(), decisions.CLOSED, "circuit-closed", text))
        return PlainTextResponse("closed\n")


def _from_a_page(request: Request) -> bool:
    """Whether a browser sends it: for any page at all, and with the password that it knows. Programs do not say so."""
    return "origin" in request.headers or "sec-fetch-site" in request.headers
