"""The checkpoint API of the sidecar. A bearer token is required; without a configured token the paths do not exist.

POST /v1/checkpoint             checkpoint all ranks of this folder: {"timeout": 600, "exit": false}
GET  /v1/checkpoint             its progress
POST /v1/checkpoint/<command>   send one protocol command to all ranks of this folder, for a coordinator whose job
                                spans several pods (the restarter)
POST /v1/defragment/<command>   the same for a defragmentation
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..checkpoint.coordinator import Coordinator, ranks_in
from ..checkpoint.protocol import ACTIONS, COMMANDS, CheckpointFailed, RankCommand, Terms
from ..config.sidecar import ControlSettings
from ..errors import Unavailable
from ..logs import event
from ..web.asgi import make_app
from ..web.auth import TokenFile
from ..web.executor import SerialExecutor
from ..web.runner import Service
from ..wire import codec

PATH = "/v1/checkpoint"
_COMMANDS = [RankCommand(name, {}, action=action) for action in ACTIONS for name in COMMANDS]
_FORWARDED = {command.path: command for command in _COMMANDS}
PATHS = frozenset({PATH, *_FORWARDED})
MAX_BODY = 4096
MAX_TIMEOUT_S = 3600.0


_BAD_BODY = (ValueError, RecursionError, codec.Misfit)
_NO_STORE = {"cache-control": "no-store"}
_UNAUTHORIZED = JSONResponse({"text": "Unauthorized"}, 401, headers={"www-authenticate": "Bearer"})
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """The latest checkpoint of this sidecar. `outcome`: running, saved, failed or no-callback."""

    id: str
    outcome: str
    text: str
    step: int | None = None
    path: str | None = None


@dataclass(frozen=True)
class _Options:
    """The body of POST /v1/checkpoint."""

    timeout: float = 600.0
    exit: bool = False


class CheckpointApi:
    """`folder` returns the folder of the ranks; it is called for each request."""

    def __init__(self, token: TokenFile, folder: Callable[[], Path]) -> None:
        self._token, self._folder = token, folder
        self._worker = SerialExecutor("gpufrag-checkpoint-command")
        self._running = threading.Lock()
        self.progress: Progress | None = None

    def routes(self) -> list[Route]:
        return [
            Route(PATH, self._start, methods=["POST"]),
            Route(PATH, self._status, methods=["GET"]),
            *(Route(path, self._forward, methods=["POST"]) for path in _FORWARDED),
        ]

    async def _start(self, request: Request) -> Response:
        if not is_authorized(self._token, request):
            return _UNAUTHORIZED
        try:
            options = codec.read(_Options, _parse(await request.body()))
        except _BAD_BODY as error:
            return _response(HTTPStatus.BAD_REQUEST, f"invalid body: {error}")
        if not 0 < options.timeout <= MAX_TIMEOUT_S:
            return _response(HTTPStatus.BAD_REQUEST, f"timeout must be above 0 and at most {MAX_TIMEOUT_S:g} seconds")
        if not self._running.acquire(blocking=False):
            return _response(HTTPStatus.CONFLICT, "a checkpoint is already running", self.progress)
        self.progress = Progress(f"sidecar-{secrets.token_hex(4)}", "running", "Waiting for the ranks.")
        arguments = (self.progress.id, options)
        try:
            threading.Thread(target=self._run, args=arguments, name="gpufrag-checkpoint", daemon=True).start()
        except RuntimeError:
            self._running.release()
            text = "cannot start another thread; raise the limit of processes (pids.max)"
            self.progress = replace(self.progress, outcome="failed", text=text)
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, text, self.progress)
        return _response(HTTPStatus.ACCEPTED, "started", self.progress)

    async def _status(self, request: Request) -> Response:
        if not is_authorized(self._token, request):
            return _UNAUTHORIZED
        if self.progress is None:
            return _response(HTTPStatus.NOT_FOUND, "no checkpoint was requested from this sidecar")
        return _response(HTTPStatus.OK, self.progress.text, self.progress)

    async def _forward(self, request: Request) -> Response:
        if not is_authorized(self._token, request):
            return _UNAUTHORIZED
        command = _FORWARDED[request.url.path]
        try:
            fields = {key: value for key, value in _parse(await request.body()).items() if key != "command"}
        except _BAD_BODY as error:
            return _response(HTTPStatus.BAD_REQUEST, f"invalid body: {error}")
        try:
            answers = await self._worker.run(lambda: ranks_in(self._folder())(replace(command, fields=fields)))
        except Unavailable as error:
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return JSONResponse(answers.as_json(), headers=_NO_STORE)

    def _run(self, checkpoint: str, options: _Options) -> None:
        try:
            coordinator = Coordinator(ranks_in(self._folder()), Terms(checkpoint, options.timeout))
            saved = coordinator.save()
            if saved is None:
                text = "No rank has a checkpoint callback: call gpufrag.on_checkpoint in the training script."
                self.progress = Progress(checkpoint, "no-callback", text)
            else:
                coordinator.release(end=options.exit)
                self.progress = Progress(checkpoint, "saved", str(saved), saved.step, saved.path)
        except (CheckpointFailed, Unavailable) as error:
            self.progress = Progress(checkpoint, "failed", str(error))
        finally:
            self._running.release()
        fields = {key: value for key, value in asdict(self.progress).items() if value is not None}
        event(log, logging.INFO, "checkpoint", **fields)


def is_authorized(token: TokenFile, request: Request) -> bool:
    given = request.headers.getlist("authorization")
    return len(given) == 1 and token.admits(given[0].encode("latin-1"))


def add_api(service: Service, routes: list[Route], api: CheckpointApi | None) -> Service:
    """Return the service with these routes and, unless `api` is None, those of the API.

    The API checks its own token, so the web config's passwords do not apply to its paths. Without the API they answer
    404 with or without a password.
    """
    return replace(
        service,
        app=make_app([*routes, *(api.routes() if api else ())]),
        open_paths=service.open_paths | PATHS,
        methods=(*service.methods, "POST"),
        max_body=MAX_BODY,
    )


def checkpoint_api(settings: ControlSettings, folder: Callable[[], Path]) -> CheckpointApi | None:
    """Return None if no token is configured. Raises Unavailable or BadInput for a file without a usable token."""
    if settings.token_file is None:
        return None
    if settings.optional and not os.path.exists(settings.token_file):
        event(log, logging.INFO, "checkpoint API is off", missing=settings.token_file)
        return None
    token = TokenFile(settings.token_file)
    token.check()
    return CheckpointApi(token, folder)


def _parse(body: bytes) -> dict[str, Any]:
    raw = codec.loads(body) if body else {}
    if not isinstance(raw, dict):
        raise ValueError("expected a JSON object")
    return raw


def _response(status: HTTPStatus, text: str, progress: Progress | None = None) -> Response:
    content = {"text": text} | (asdict(progress) if progress else {})
    return JSONResponse(content, status, headers=_NO_STORE)
