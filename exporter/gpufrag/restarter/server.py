"""The restarter as a process: connects a backend, runs the worker in a thread, and serves two ports.

Alerts and decisions are on one port; metrics and probes on another, so a network policy can tell them apart.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

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
from ..wire import folder
from .backend import JobBackend
from .checkpoint import AgreedCheckpointer, Checkpointer, NoCheckpointer
from .circuit import CircuitBreaker, CircuitStore
from .clock import Clock
from .completion import Completion
from .decisions import DecisionLog, Notify
from .defragment import Defragmenter
from .metrics import DRY_RUN, Metrics
from .recheck import checker
from .restart import Restarter
from .settings import RestarterConfig
from .state_file import StateFile
from .webhook import Webhook
from .worker import Worker

if TYPE_CHECKING:
    from .kubernetes.client import KubernetesClient

PROBES = frozenset({"/-/healthy", "/-/ready"})
STOP_S = 3.0
"""Time for restarts that have not begun to remove their claims at exit."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Platform:
    """Where the jobs run, and what depends on it."""

    jobs: JobBackend
    circuit: CircuitStore
    checkpointer: Checkpointer
    notify: Notify | None = None
    defragmenter: Defragmenter | None = None


def connect(
    config: RestarterConfig, kubeconfig: Path | None = None, context: str | None = None, namespace: str = "default"
) -> Platform:
    """Return the platform of `config.target`; `namespace` is the restarter's own. Raises GpufragError."""
    clock = Clock()
    if config.target == "kubernetes":
        from .kubernetes import client

        return kubernetes_platform(config, client.connect(kubeconfig, context), namespace, clock)
    state_file = _state_file(config)
    if config.target == "process":
        from .local.backend import LocalBackend

        jobs = LocalBackend(config.process.folder or folder.to_read(os.environ))
        checkpointer = AgreedCheckpointer(jobs.ranks, config.checkpoint.hold)
        return Platform(jobs, state_file, checkpointer, defragmenter=Defragmenter(jobs.ranks, config.defragment))
    from .slurm.backend import SignalCheckpointer, SlurmBackend
    from .slurm.commands import runner

    settings, run = config.slurm, runner(config.slurm.timeout)
    backend = SlurmBackend(run, state_file, settings.users or (getpass.getuser(),), settings.start_after)
    return Platform(backend, state_file, SignalCheckpointer(run, clock.steady, settings.signal_grace))


def kubernetes_platform(config: RestarterConfig, client: KubernetesClient, namespace: str, clock: Clock) -> Platform:
    from .kubernetes.backend import ConfigMapStore, KubernetesBackend
    from .kubernetes.sidecars import ranks_of

    jobs = KubernetesBackend(client, config.policy.namespaces, clock.steady)
    store = ConfigMapStore(client, config.circuit.namespace or namespace, config.circuit.config_map)
    settings = config.checkpoint
    if settings.token_file is None:
        return Platform(jobs, store, NoCheckpointer(), jobs.notify)
    TokenFile(settings.token_file).check()
    ranks = ranks_of(jobs.pods, settings)
    checkpointer = AgreedCheckpointer(ranks, settings.hold)
    return Platform(jobs, store, checkpointer, jobs.notify, Defragmenter(ranks, config.defragment))


def _state_file(config: RestarterConfig) -> StateFile:
    if config.state_file is None:
        raise UsageError(f"state_file is required with target: {config.target}")
    return StateFile(config.state_file)


@dataclass(frozen=True)
class Assembly:
    """The parts of one restarter."""

    worker: Worker
    webhook: Webhook
    metrics: Metrics


def assemble(
    config: RestarterConfig, platform: Platform, clock: Clock | None = None, stream: TextIO | None = None
) -> Assembly:
    """Raises Unavailable if a file that the config names cannot be used. `stream` receives the decisions."""
    clock, metrics = clock or Clock(), Metrics()
    metrics.set(DRY_RUN, config.policy.dry_run)
    decisions = DecisionLog(metrics, clock, platform.notify, stream or sys.stdout)
    circuit = CircuitBreaker(platform.circuit, config.policy, clock, metrics)
    completion = Completion(platform.jobs, config.restart, clock, decisions)
    restarter = Restarter(
        platform.jobs,
        platform.checkpointer,
        platform.defragmenter,
        config,
        clock,
        decisions,
        metrics,
        completion,
    )
    recheck = checker(config.prometheus, platform.jobs.series_labels)
    name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    worker = Worker(config, restarter, circuit, decisions, metrics, recheck, name)
    return Assembly(worker, Webhook(worker.offer, decisions, circuit, metrics, clock.wall), metrics)


def run(config: RestarterConfig, assembly: Assembly) -> None:
    """Serve until a signal. Raises UsageError if callers are not authenticated, else as `web.runner.run`."""
    service = replace(assembly.webhook.service(), token=_token(config), started=_log_address("alerts"))
    server, metrics_server = WebServer(service, config.web), WebServer(probes(assembly), config.metrics_web)
    with _working(assembly.worker), _in_thread(metrics_server):
        asyncio.run(server.serve())


def check(config: RestarterConfig) -> None:
    """Check what needs no connection. Raises GpufragError."""
    _token(config)
    for web in (config.web, config.metrics_web):
        listen.parse(web.listen_address)
        read_files(web.config_file)
    checker(config.prometheus, lambda alert: {})
    if config.checkpoint.token_file is not None:
        from .kubernetes.sidecars import Sidecars

        TokenFile(config.checkpoint.token_file).check()
        Sidecars(config.checkpoint)
    if config.target == "kubernetes":
        from .kubernetes import client  # noqa: F401 (raises Unavailable without its library)
    else:
        _state_file(config)


def _token(config: RestarterConfig) -> TokenFile | None:
    """Also required on loopback: any local user can connect there."""
    token = TokenFile(config.auth.bearer_file) if config.auth.bearer_file else None
    if token is not None:
        token.check()
    elif not read_files(config.web.config_file).web.authenticates:
        raise UsageError(
            "auth.bearer_file is not set: anyone who can connect could restart jobs. "
            "Create a token with: openssl rand -hex 32 > token; then set auth: {bearer_file: token}"
        )
    return token


def probes(assembly: Assembly) -> Service:
    """Return the service with /metrics, /-/healthy and /-/ready."""

    async def metrics(request: Request) -> Response:
        content_type, body = write(assembly.metrics, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type, "vary": "accept", "cache-control": "no-store"})

    async def healthy(request: Request) -> Response:
        alive = assembly.worker.alive
        return PlainTextResponse("ok\n" if alive else "the worker has stopped or is stuck\n", 200 if alive else 500)

    async def ready(request: Request) -> Response:
        is_ready = assembly.worker.ready
        text = "ready\n" if is_ready else "the first search for unfinished restarts is not complete\n"
        return PlainTextResponse(text, 200 if is_ready else 503)

    routes = [Route("/metrics", metrics), Route("/-/healthy", healthy), Route("/-/ready", ready)]
    return Service(make_app(routes), open_paths=PROBES, started=_log_address("metrics"))


def _log_address(purpose: str) -> Callable[[listen.Address], None]:
    return lambda address: event(log, logging.INFO, "listening", address=address, **{"for": purpose})


@contextmanager
def _working(worker: Worker) -> Iterator[None]:
    """The exit does not wait for a call that hangs until its timeout."""
    thread = threading.Thread(target=worker.run, name="gpufrag-restarts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(STOP_S)


@contextmanager
def _in_thread(server: WebServer) -> Iterator[None]:
    """Signals reach only the other server; this one ends with it."""
    loop = asyncio.new_event_loop()

    def serve() -> None:
        try:
            loop.run_until_complete(server.serve())
        finally:
            loop.close()

    thread = threading.Thread(target=serve, name="gpufrag-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(server.end)
        thread.join(5.0)
