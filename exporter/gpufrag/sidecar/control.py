"""The control endpoint: whoever has its token may have the ranks of this sidecar's folder save, and end.

    POST /v1/checkpoint             all of it, where this folder has all ranks: {"timeout": 600, "exit": false}
    GET  /v1/checkpoint             how that stands
    POST /v1/checkpoint/<command>   one command of the agreement, handed on to all ranks here: for a receiver that
                                    leads it over several pods

Off without a token: then no such paths exist, for whatever method.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..checkpoint import rank_sockets
from ..checkpoint.agree import agree
from ..checkpoint.records import COMMANDS, NotSaved, Saved, Terms, release
from ..config.sidecar import ControlSettings
from ..errors import Unavailable
from ..logs import event
from ..web.bearer import TokenFile
from ..web.routes import only
from ..web.runner import Service
from ..web.worker import Worker
from ..wire import codec as json_record

PATH = "/v1/checkpoint"
PATHS = frozenset({PATH, *(f"{PATH}/{command}" for command in COMMANDS)})
MAX_BODY = 4096
LONGEST_S = 3600.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """Of the last checkpoint that was asked for here. `outcome`: running, saved, failed or no-callback."""

    id: str
    outcome: str
    text: str
    step: int | None = None
    path: str | None = None


@dataclass(frozen=True)
class _Wish:
    """The body of POST /v1/checkpoint."""

    timeout: float = 600.0
    exit: bool = False


class Control:
    """`folder` tells where the ranks are, at each request."""

    def __init__(self, token: TokenFile, folder: Callable[[], Path]) -> None:
        self._token, self._folder = token, folder
        self._worker = Worker("gpufrag-asks")
        self._busy = threading.Lock()
        self.progress: Progress | None = None

    def routes(self) -> list[Route]:
        handing = [Route(f"{PATH}/{command}", self._hand_on, methods=["POST"]) for command in COMMANDS]
        own = [Route(PATH, self._begin, methods=["POST"]), Route(PATH, self._status, methods=["GET"])]
        return own + handing

    async def _begin(self, request: Request) -> Response:
        if not self._admits(request):
            return _UNAUTHORIZED
        try:
            wish = json_record.read(_Wish, _parsed(await request.body()))
        except _BAD as error:
            return _said(HTTPStatus.BAD_REQUEST, f"no request: {error}")
        if not 0 < wish.timeout <= LONGEST_S:
            return _said(HTTPStatus.BAD_REQUEST, f"timeout: seconds up to {LONGEST_S:g} belong here")
        if not self._busy.acquire(blocking=False):
            return _said(HTTPStatus.CONFLICT, "a checkpoint is under way", self.progress)
        self.progress = Progress(f"sidecar-{secrets.token_hex(4)}", "running", "The ranks are asked.")
        threading.Thread(target=self._lead, args=(self.progress.id, wish), name="gpufrag-lead", daemon=True).start()
        return _said(HTTPStatus.ACCEPTED, "begun", self.progress)

    async def _status(self, request: Request) -> Response:
        if not self._admits(request):
            return _UNAUTHORIZED
        if self.progress is None:
            return _said(HTTPStatus.NOT_FOUND, "no checkpoint was asked for here")
        return _said(HTTPStatus.OK, self.progress.text, self.progress)

    async def _hand_on(self, request: Request) -> Response:
        if not self._admits(request):
            return _UNAUTHORIZED
        command = request.url.path.rpartition("/")[2]
        try:
            fields = {key: value for key, value in _parsed(await request.body()).items() if key != "command"}
        except _BAD as error:
            return _said(HTTPStatus.BAD_REQUEST, f"no request: {error}")
        try:
            heard = await self._worker.run(lambda: rank_sockets.broadcast(self._folder(), command, fields))
        except Unavailable as error:
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return JSONResponse(heard.as_json(), headers=_NO_STORE)

    def _admits(self, request: Request) -> bool:
        given = request.headers.getlist("authorization")
        return len(given) == 1 and self._token.admits(given[0].encode("latin-1"))

    def _lead(self, checkpoint: str, wish: _Wish) -> None:
        ask = rank_sockets.in_folder(self._folder())
        try:
            saved = rank_sockets.lead(agree(Terms(checkpoint, wish.timeout), time.monotonic), ask)
            if saved is not None:
                ask(release(checkpoint, end=wish.exit))
            self.progress = _told(checkpoint, saved)
        except (NotSaved, Unavailable) as error:
            self.progress = Progress(checkpoint, "failed", str(error))
        finally:
            self._busy.release()
        event(log, logging.INFO, "checkpoint", **{k: v for k, v in asdict(self.progress).items() if v is not None})


def added(service: Service, routes: list[Route], control: Control | None) -> Service:
    """The service with these paths too. They ask for the token themselves: no password of the web config opens them.

    Without control they are not found, with or without a password: who asks learns that it is off, and no more.
    """
    return replace(
        service,
        app=only([*routes, *(control.routes() if control else ())]),
        open_paths=service.open_paths | PATHS,
        methods=(*service.methods, "POST"),
        max_body=MAX_BODY,
    )


def control(settings: ControlSettings, folder: Callable[[], Path]) -> Control | None:
    """None where there is no token. Raises Unavailable or BadInput for a file that admits nobody."""
    if settings.token_file is None:
        return None
    if settings.optional and not os.path.exists(settings.token_file):
        event(log, logging.INFO, "nobody may ask for a checkpoint", missing=settings.token_file)
        return None
    token = TokenFile(settings.token_file)
    token.check()
    return Control(token, folder)


def _told(checkpoint: str, saved: Saved | None) -> Progress:
    if saved is None:
        return Progress(checkpoint, "no-callback", "No rank has a checkpoint callback: call gpufrag.on_checkpoint.")
    where = f" to {saved.path}" if saved.path else ""
    text = f"{saved.ranks} ranks saved at step {saved.step}{where}."
    return Progress(checkpoint, "saved", text, saved.step, saved.path)


_BAD = (ValueError, RecursionError, json_record.Misfit)
_NO_STORE = {"cache-control": "no-store"}


def _parsed(body: bytes) -> dict[str, Any]:
    raw = json_record.loads(body) if body else {}
    if not isinstance(raw, dict):
        raise ValueError("a JSON object belongs here")
    return raw


def _said(status: HTTPStatus, text: str, progress: Progress | None = None) -> Response:
    content = {"text": text} | (asdict(progress) if progress else {})
    return JSONResponse(content, status, headers=_NO_STORE)


_UNAUTHORIZED = JSONResponse({"text": "Unauthorized"}, 401, headers={"www-authenticate": "Bearer"})
