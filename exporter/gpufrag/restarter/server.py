"""The restarter as a process: the worker in its thread, alerts on one port, metrics and probes on another."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TextIO

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..errors import UsageError
from ..logs import event
from ..metrics.exposition import write
from ..web import listen
from ..web.asgi import make_app
from ..web.auth import TokenFile
from ..web.config import read_files
from ..web.runner import Service, WebServer
from .agreed import AgreedCheckpointer
from .alerts import Alert
from .announce import Announcer
from .checkpoint import Checkpointer, NoCheckpointer
from .circuit import ConfigMapStore
from .clock import Clock
from .decisions import Recorder
from .finish import Finisher
from .fuse import Fuse
from .kubernetes.cluster import Cluster, GroupKind
from .kubernetes.sidecars import Sidecars, reaching
from .kubernetes.targets import TARGETS, Target
from .ledger import Said
from .metrics import DRY_RUN, Metrics
from .recheck import checker
from .restart import Restarter
from .settings import RestarterConfig
from .webhook import Webhook
from .worker import Worker

PROBES = frozenset({"/-/healthy", "/-/ready"})
SAID_AGAIN_S = 300.0
"""The same refusal of the same job is not told more often."""
STOP_S = 3.0
"""In which a restart that has not begun gives its claim back."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assembly:
    """The parts, put together."""

    worker: Worker
    webhook: Webhook
    metrics: Metrics


def assemble(
    config: RestarterConfig,
    cluster: Cluster,
    namespace: str,
    checkpointer: Checkpointer | None = None,
    clock: Clock | None = None,
    audit: TextIO | None = None,
    targets: Mapping[GroupKind, Target] = TARGETS,
    locate: Callable[[Alert], Alert] = lambda alert: alert,
) -> Assembly:
    """`namespace`: of the ConfigMap that remembers the circuit. Raises Unavailable for a file that is named.

    `locate` is applied to each alert that comes in, and gives it the place of its job where its labels do not.
    """
    clock, metrics = clock or Clock(), Metrics()
    metrics.set(DRY_RUN, config.policy.dry_run)
    recorder = Recorder(cluster, metrics, audit)
    store = ConfigMapStore(cluster, config.circuit.namespace or namespace, config.circuit.config_map)
    fuse = Fuse(store, config.policy, clock, metrics)
    finisher = Finisher(cluster, targets, config.restart, clock)
    checkpointer = checkpointer or _checkpointer(config, cluster, targets)
    restarter = Restarter(finisher, checkpointer, config.checkpoint, metrics, config.policy.max_wait)
    announcer = Announcer(recorder, metrics, clock, Said(SAID_AGAIN_S))
    name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    worker = Worker(config, restarter, fuse, announcer, metrics, checker(config.prometheus), name)

    def offer(alerts: Iterable[Alert]) -> bool:
        return worker.offer(map(locate, alerts))

    return Assembly(worker, Webhook(offer, recorder, fuse, metrics, clock.wall), metrics)


def run(config: RestarterConfig, assembly: Assembly) -> None:
    """Until a signal. Raises UsageError for alerts that anybody could send, else as `web.runner.run`."""
    service = replace(assembly.webhook.service(), token=_token(config), started=_announce("alerts"))
    server, metrics_server = WebServer(service, config.web), WebServer(probes(assembly), config.metrics_web)
    with _working(assembly.worker), _in_thread(metrics_server):
        asyncio.run(server.serve())


def _checkpointer(config: RestarterConfig, cluster: Cluster, targets: Mapping[GroupKind, Target]) -> Checkpointer:
    settings = config.checkpoint
    if settings.token_file is None:
        return NoCheckpointer()
    TokenFile(settings.token_file).check()
    return AgreedCheckpointer(reaching(cluster, targets, settings), settings.hold)


def check(config: RestarterConfig) -> None:
    """What can be known of a config without a cluster. Raises GpufragError, each of which says what to mend."""
    _token(config)
    for web in (config.web, config.metrics_web):
        listen.parse(web.listen_address)
        read_files(web.config_file)
    checker(config.prometheus)
    if config.checkpoint.token_file is not None:
        TokenFile(config.checkpoint.token_file).check()
        Sidecars(config.checkpoint)


def _token(config: RestarterConfig) -> TokenFile | None:
    address = listen.parse(config.web.listen_address)
    token = TokenFile(config.auth.bearer_file) if config.auth.bearer_file else None
    if token is not None:
        token.check()
    elif not address.loopback and not read_files(config.web.config_file).web.authenticates:
        raise UsageError(f"{address}: anybody who can connect could restart jobs; set auth.bearer_file")
    return token


def probes(assembly: Assembly) -> Service:
    """/metrics, /-/healthy and /-/ready."""

    async def metrics(request: Request) -> Response:
        content_type, body = write(assembly.metrics, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type, "vary": "accept", "cache-control": "no-store"})

    async def healthy(request: Request) -> Response:
        alive = assembly.worker.alive
        return PlainTextResponse("ok\n" if alive else "the worker has ended\n", 200 if alive else 500)

    async def ready(request: Request) -> Response:
        is_ready = assembly.worker.ready
        text = "ready\n" if is_ready else "waiting for the first search for jobs left half way\n"
        return PlainTextResponse(text, 200 if is_ready else 503)

    routes = [Route("/metrics", metrics), Route("/-/healthy", healthy), Route("/-/ready", ready)]
    return Service(make_app(routes), open_paths=PROBES, started=_announce("metrics"))


def _announce(what: str) -> Callable[[listen.Address], None]:
    return lambda address: event(log, logging.INFO, "listening", address=address, **{"for": what})


@contextmanager
def _working(worker: Worker) -> Iterator[None]:
    """A call to the cluster may hang until its time-out: an exit does not wait for it."""
    thread = threading.Thread(target=worker.run, name="gpufrag-restarts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(STOP_S)


@contextmanager
def _in_thread(server: WebServer) -> Iterator[None]:
    """Signals reach the other server only; this one ends with it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_serve, args=(loop, server), name="gpufrag-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(server.end)
        thread.join(5.0)


def _serve(loop: asyncio.AbstractEventLoop, server: WebServer) -> None:
    try:
        loop.run_until_complete(server.serve())
    finally:
        loop.close()
