"""The sidecar's HTTP routes: /metrics, /-/healthy, /-/ready and the page."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from .. import metrics
from ..config.sidecar import ServeConfig
from ..errors import Unavailable
from ..logs import event
from ..metrics.view import CollectorResult, Fleet
from ..web.asgi import make_app
from ..web.auth import TokenFile
from ..web.executor import SerialExecutor
from ..web.listen import Address
from ..web.runner import Reload, Service
from ..wire.folder import FileName
from . import page, step_report
from .control import add_api, checkpoint_api
from .history import History
from .procfs import agent_processes
from .rank_api import PATHS as RANK_PATHS
from .rank_api import RankApi
from .sample_files import REMEDIES, Skip
from .source import FleetSource, nvml_collector
from .step_report import PageCache, StepReports

DENIED = REMEDIES[Skip.DENIED]
PROBES = frozenset({"/-/healthy", "/-/ready"})
FIRST_READ_SECONDS = 1.0
REREAD_SECONDS = 30.0
GZIP_LEVEL = 1  # shrinks to a ninth already; higher levels take longer than they save
PACKAGE = Path(__file__).resolve().parents[1]
RUNBOOK_FOLDERS = (PACKAGE / "runbooks", PACKAGE.parents[1] / "docs" / "runbooks")  # of a wheel, of a source tree
RUNBOOKS = {path.stem: path for folder in RUNBOOK_FOLDERS for path in folder.glob("*.md")}
log = logging.getLogger(__name__)


class Sidecar:
    """`folder` returns the agents' folder for a config; `load` reads the config again, on SIGHUP."""

    def __init__(
        self, config: ServeConfig, folder: Callable[[ServeConfig], Path], load: Callable[[], ServeConfig]
    ) -> None:
        self._load, self._find_folder = load, folder
        self._executor = SerialExecutor("gpufrag-scrape")
        self._source = FleetSource(folder(config), config.folder, nvml_collector(config.nvml), config.analysis)
        self._detail = config.metrics.detail
        self._history = History()
        self._checkpoint_api = checkpoint_api(config.control, lambda: self._source.folder)
        self._rank_api = None
        cache = PageCache()
        if self._checkpoint_api is not None and config.control.token_file is not None:
            self._rank_api = RankApi(TokenFile(config.control.token_file), lambda: self._source.folder, cache)
        self._step_reports = StepReports(cache)
        self._report_worker = SerialExecutor("gpufrag-step-report")

    def close(self) -> None:
        """End threads and worker processes, which would otherwise finish their work after the sidecar's end."""
        self._source.close()

    def service(self) -> Service:
        routes = [
            Route("/", self._page),
            Route("/oom/{name}", self._report),
            Route("/steps/{name}", self._step_report),
            *(self._rank_api.routes() if self._rank_api else ()),
            Route("/runbooks/", self._runbooks),
            Route("/runbooks/{name}", self._runbook),
            Route("/metrics", self._metrics),
            Route("/-/healthy", self._healthy),
            Route("/-/ready", self._ready),
        ]
        service = Service(
            make_app(routes),
            open_paths=PROBES | RANK_PATHS,
            reload=self._reload,
            started=self._started,
            background=self._keep_reading,
        )
        return add_api(service, routes, self._checkpoint_api)

    async def _metrics(self, request: Request) -> Response:
        zipped = _accepts_gzip(request.headers.get("accept-encoding", ""))
        accept = request.headers.get("accept", "")

        def scrape() -> tuple[str, bytes]:
            content_type, body = _render(self._read(), accept, self._detail)
            return content_type, gzip.compress(body, GZIP_LEVEL, mtime=0) if zipped else body

        content_type, body = await self._executor.run(scrape)
        headers = {"content-type": content_type, "vary": "accept, accept-encoding", "cache-control": "no-store"}
        return Response(body, headers=headers | ({"content-encoding": "gzip"} if zipped else {}))

    async def _page(self, request: Request) -> Response:
        def render() -> bytes:
            fleet = self._read()
            processes = () if any(rank.alive for rank in fleet.ranks) else agent_processes()
            around = page.Surroundings(self._source.folder, self._history, processes, self._rank_api is not None)
            return page.render(fleet, around)

        return Response(await self._executor.run(render), headers=page.HEADERS)

    async def _report(self, request: Request) -> Response:
        fleet = await self._executor.run(self._read)
        for report in fleet.ooms:
            if page.report_name(report) == request.path_params["name"]:
                return Response(page.render_report(report), headers=page.PLAIN_HEADERS)
        return PlainTextResponse("no such report\n", 404)

    async def _step_report(self, request: Request) -> Response:
        """The memory map of a running rank's latest step recording."""
        name = FileName.parse(request.path_params["name"])
        fleet = await self._executor.run(self._read)
        alive = {FileName.of(rank.sample.identity) for rank in fleet.ranks if rank.alive}
        if name not in alive or name is None:
            return PlainTextResponse("no such process\n", 404)
        folder = self._source.folder
        try:
            content = await self._report_worker.run(lambda: self._step_reports.page(folder, name))
        except Unavailable as error:
            return PlainTextResponse(f"{error}\n", 503)
        return Response(content, headers=step_report.headers())

    async def _runbooks(self, request: Request) -> Response:
        names = "\n".join(f"runbooks/{name}" for name in sorted(RUNBOOKS))
        return Response(page.render_text("Runbooks", names), headers=page.PLAIN_HEADERS)

    async def _runbook(self, request: Request) -> Response:
        name = request.path_params["name"].removesuffix(".md")
        if name not in RUNBOOKS:
            return PlainTextResponse("no such runbook\n", 404)
        text = RUNBOOKS[name].read_text(encoding="utf-8")
        return Response(page.render_text(name, text), headers=page.PLAIN_HEADERS)

    def _read(self) -> Fleet:
        fleet = self._source.read()
        self._history.add(fleet)
        return fleet

    async def _healthy(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _ready(self, request: Request) -> Response:
        """Denied ranks do not make it unready: a restart would not help, and the other ranks are served."""
        if reason := self._source.waiting_for:
            return PlainTextResponse(f"waiting for {reason}\n", 503)
        denied = self._source.denied
        return PlainTextResponse(f"ready, but ranks denied: {denied}; {DENIED}\n" if denied else "ready\n")

    async def _keep_reading(self) -> None:
        """Read without a scrape too: it makes the sidecar ready and cleans the folder."""
        while True:
            await self._executor.run(self._read)
            await asyncio.sleep(FIRST_READ_SECONDS if self._source.waiting_for else REREAD_SECONDS)

    def _started(self, address: Address) -> None:
        event(log, logging.INFO, "listening", address=address, scheme=address.scheme, folder=self._source.folder)

    def _reload(self) -> Reload:
        config = self._load()
        folder = self._find_folder(config)
        return Reload(config.web, lambda: self._executor.run(lambda: self._take(config, folder)))

    def _take(self, config: ServeConfig, folder: Path) -> None:
        """Runs between two scrapes, in the same thread."""
        self._source.reconfigure(folder, config.folder, config.nvml, config.analysis)
        self._detail = config.metrics.detail
        logging.getLogger().setLevel(config.log.level.upper())


def _render(fleet: Fleet, accept: str, detail: bool) -> tuple[str, bytes]:
    try:
        return metrics.render(fleet, accept, detail=detail)
    except Exception as error:  # one rank's broken value must not hide the others
        log.exception("cannot render the metrics")
        failed = CollectorResult(False, None, f"internal error ({type(error).__name__}: {error})")
        ranks = tuple(rank for rank in fleet.ranks if _renders(Fleet(fleet.time, (rank,))))
        collectors = {**fleet.collectors, "render": failed}
        return metrics.render(Fleet(fleet.time, ranks, (), collectors, fleet.skipped), accept, detail=detail)


def _renders(fleet: Fleet) -> bool:
    try:
        metrics.render(fleet)
    except Exception:  # the caller reports it
        return False
    return True


def _accepts_gzip(header: str) -> bool:
    """Return whether Accept-Encoding has `gzip` or `*` with a quality above 0."""
    for part in header.lower().split(","):
        name, _, quality = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
