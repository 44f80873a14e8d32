"""The HTTP API: receives alerts and answers at once, shows decisions, and closes the circuit breaker."""

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
from .circuit import STORE_ERRORS, CircuitBreaker
from .decisions import DecisionLog
from .metrics import CALLS, Metrics

FORBIDDEN = PlainTextResponse("web pages may not send this request\n", 403)
RETRY_AFTER = {"retry-after": "5"}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Webhook:
    """The routes of the port for Alertmanager and people."""

    offer: Callable[[Iterable[Alert]], bool]
    decisions: DecisionLog
    circuit: CircuitBreaker
    metrics: Metrics
    now: Callable[[], float]
    blocking: SerialExecutor = field(default_factory=lambda: SerialExecutor("gpufrag-circuit"))

    def service(self) -> Service:
        """The caller adds the token; see `server`."""
        routes = [
            Route("/", self._page, methods=["GET"]),
            Route("/v1/alerts", self._alerts, methods=["POST"]),
            Route("/v1/decisions", self._decisions, methods=["GET"]),
            Route("/v1/circuit/close", self._close, methods=["POST"]),
        ]
        return Service(make_app(routes), methods=("GET", "HEAD", "POST"), max_body=MAX_BODY)

    async def _alerts(self, request: Request) -> Response:
        """Answer 202 if the alerts will be handled; after any other answer, Alertmanager sends them again."""
        if _from_browser(request):
            return FORBIDDEN
        try:
            alerts = parse(await request.body())
        except BadInput as error:
            self.metrics.count(CALLS, "version" if isinstance(error, NewerVersion) else "malformed")
            event(log, logging.WARNING, "rejected a webhook call", reason=error)
            return PlainTextResponse(f"{error}\n", 400)
        if not self.offer(alerts):
            self.metrics.count(CALLS, "full")
            return PlainTextResponse("the queue is full\n", 503, headers=RETRY_AFTER)
        self.metrics.count(CALLS, "accepted")
        return PlainTextResponse("accepted\n", 202)

    async def _decisions(self, request: Request) -> Response:
        return JSONResponse([one.as_json() for one in self.decisions.latest()], headers={"cache-control": "no-store"})

    async def _page(self, request: Request) -> Response:
        body = page.render(self.decisions.latest(), self.now(), self.metrics)
        return Response(body, headers=HEADERS)

    async def _close(self, request: Request) -> Response:
        if _from_browser(request):
            return FORBIDDEN
        who = request.client.host if request.client else "an unknown address"
        try:
            await self.blocking.run(self.circuit.close)
        except STORE_ERRORS as error:
            return PlainTextResponse(f"cannot close the circuit breaker: {error}\n", 503, headers=RETRY_AFTER)
        text = f"A request from {who} closed the circuit breaker."
        self.decisions.publish(decisions.CIRCUIT_CLOSED, "circuit-closed", text)
        return PlainTextResponse("closed\n")


def _from_browser(request: Request) -> bool:
    """Any web page could make a browser send it, with the password that it stores."""
    return "origin" in request.headers or "sec-fetch-site" in request.headers
