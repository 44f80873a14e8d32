"""What the page's buttons do with a rank. A bearer token is required; without a configured token no path exists.

GET  /v1/ranks            204 if the token is right
POST /v1/ranks/snapshot   have a rank take a heap snapshot now: {"process": "<host>-<pid>-<start>"}
POST /v1/ranks/record     record steps; the answer is the file, as of `gpufrag record`: {"process", "steps": 3}
POST /v1/ranks/explain    record steps with stacks, and make a report of them: the answer has its path
GET  /reports/<id>        such a report, with the access of the page
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..errors import Unavailable
from ..logs import event
from ..units import format_bytes
from ..web.auth import TokenFile
from ..web.executor import SerialExecutor
from ..wire import codec
from ..wire.control_client import Rejected, ask
from ..wire.folder import SAMPLE_SUFFIX, FileName, open_plain
from .control import is_authorized
from .step_report import TRACE, PageCache, headers, make_report

PATH = "/v1/ranks"
ACTIONS = ("snapshot", "record", "explain")
PATHS = frozenset({PATH, *(f"{PATH}/{action}" for action in ACTIONS)})
MAX_STEPS = 10
RECORD_S, MARGIN_S = 120.0, 30.0
"""The longest time for the steps, and for writing the file afterwards."""
MAX_TRACE = 256 << 20
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Order:
    """The body of a request."""

    process: str
    steps: int = 3


class RankApi:
    """`folder` returns the folder of the ranks. One action runs at a time; others wait."""

    def __init__(self, token: TokenFile, folder: Callable[[], Path], cache: PageCache) -> None:
        self._token, self._folder, self._reports = token, folder, cache
        self._worker = SerialExecutor("gpufrag-rank-command")

    def routes(self) -> list[Route]:
        return [
            Route(PATH, self._check, methods=["GET"]),
            *(Route(f"{PATH}/{action}", self._act, methods=["POST"]) for action in ACTIONS),
            Route("/reports/{name}", self._report, methods=["GET"]),
        ]

    async def _check(self, request: Request) -> Response:
        return Response(status_code=204, headers=_NO_STORE) if is_authorized(self._token, request) else _UNAUTHORIZED

    async def _report(self, request: Request) -> Response:
        page = self._reports.get(request.path_params["name"])
        return PlainTextResponse("no such report\n", 404) if page is None else Response(page, headers=headers())

    async def _act(self, request: Request) -> Response:
        if not is_authorized(self._token, request):
            return _UNAUTHORIZED
        action = request.url.path.rpartition("/")[2]
        try:
            order = codec.read(_Order, codec.loads(await request.body()))
            name = FileName.parse(order.process + SAMPLE_SUFFIX)
            if name is None or not 1 <= order.steps <= MAX_STEPS:
                raise ValueError(f"process must be a name from the page, steps 1 to {MAX_STEPS}")
        except (ValueError, RecursionError, codec.Misfit) as error:
            return _text(HTTPStatus.BAD_REQUEST, f"invalid body: {error}")
        try:
            answer = await self._worker.run(lambda: self._run(action, name, order.steps))
        except Rejected as error:
            return _text(HTTPStatus.CONFLICT, str(error))
        except Unavailable as error:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        event(log, logging.INFO, "rank command", action=action, pid=name.pid, client=_client(request))
        return answer

    def _run(self, action: str, name: FileName, steps: int) -> Response:
        """Raises Unavailable, Rejected.

        Who listens is not checked: the pid in a name is of the rank's container, so the kernel tells another one here.
        The folder's permissions decide, for the file that is read afterwards too.
        """
        folder = self._folder()
        if action == "snapshot":
            ask(folder / name.socket, {"command": "sample-now"}, MARGIN_S)
            return _text(HTTPStatus.OK, "snapshot taken")
        stacks = action == "explain"
        order = {"command": "record", "steps": steps, "stacks": stacks, "timeout": RECORD_S}
        ask(folder / name.socket, order, RECORD_S + MARGIN_S)
        data = _take(folder / name.trace)
        if not stacks:
            headers = {"content-disposition": f'attachment; filename="steps-{name.pid}.pickle"', **_NO_STORE}
            return Response(data, media_type="application/octet-stream", headers=headers)
        report = secrets.token_urlsafe(16)
        page = make_report(TRACE, data, f"{steps} steps of process {name.pid} on {name.host}")
        self._reports.put(report, page)
        return JSONResponse({"text": "report ready", "report": f"reports/{report}"}, headers=_NO_STORE)


def _take(path: Path) -> bytes:
    """Read and delete what the rank has recorded. Raises Unavailable."""
    try:
        with open_plain(path) as file:
            data = file.read(MAX_TRACE + 1)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"cannot read {path.name}: {error.strerror}; run the sidecar as the job's user") from None
    if len(data) > MAX_TRACE:
        raise Unavailable(f"the recording is larger than {format_bytes(MAX_TRACE)}; record fewer steps")
    return data


def _client(request: Request) -> str:
    return request.client.host if request.client else ""


_NO_STORE = {"cache-control": "no-store"}


def _text(status: HTTPStatus, text: str) -> Response:
    return JSONResponse({"text": text}, status, headers=_NO_STORE)


_UNAUTHORIZED = JSONResponse({"text": "Unauthorized"}, 401, headers={"www-authenticate": "Bearer"})
