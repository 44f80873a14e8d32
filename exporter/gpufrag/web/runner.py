"""Run an ASGI application until a signal ends it: SIGTERM and SIGINT drain, SIGHUP reloads.

uvicorn's protocol speaks HTTP/1.1; accepting, limits, TLS, reloading and draining are ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from uvicorn.config import Config
from uvicorn.server import ServerState

from ..config.sidecar import WebSettings
from ..errors import GpufragError
from ..logs import event
from ..units import format_duration
from . import config, listen
from .asgi import WithHeaders
from .auth import Authentication, Passwords
from .connections import Connections
from .limits import BoundedProtocol, RequestChecks, RequestSlots

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from .auth import TokenFile

WATCH_SECONDS = 5.0
CANCEL_SECONDS = 1.0
log = logging.getLogger(__name__)


class Reload(NamedTuple):
    """A new config that was read and checked; `apply` puts it into force."""

    web: WebSettings
    apply: Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Service:
    """An application and how to serve it."""

    app: ASGIApp
    methods: tuple[str, ...] = ("GET", "HEAD")
    """Other methods are answered 405."""
    max_body: int = 0
    """Maximum bytes of a request's body."""
    open_paths: frozenset[str] = frozenset()
    """Health probes: no password, no Host check, request slots of their own."""
    token: TokenFile | None = None
    """Admits programs, in addition to the users of the web config file."""
    reload: Callable[[], Reload | None] = lambda: None
    """Called on SIGHUP; returns a new config, or raises GpufragError to keep the old one."""
    started: Callable[[listen.Address], None] = lambda address: None
    """Called with the address once the server listens."""
    background: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Runs next to the server; cancelled at its end."""


def run(service: Service, settings: WebSettings) -> None:
    """Serve until a signal. Raises Unavailable, BadInput or UsageError if the server cannot start."""
    asyncio.run(WebServer(service, settings).serve())


class WebServer:
    """One application on one address. The constructor binds, so that errors come before anything is served."""

    def __init__(self, service: Service, settings: WebSettings) -> None:
        address = listen.parse(settings.listen_address)
        self._service, self._settings, self._bound = service, settings, settings.listen_address
        self._files = config.read_files(settings.config_file)
        self._slots = RequestSlots(service.app, settings, service.open_paths)
        users = Passwords(self._files.web.basic_auth_users)
        self._auth = Authentication(self._slots, users, service.open_paths, service.token)
        self._checks = RequestChecks(self._auth, settings, service.methods, service.max_body, service.open_paths)
        self._outermost = WithHeaders(self._checks, self._files.web.http_server_config.headers)
        self._listener = listen.bind(address)
        scheme = "https" if self._files.context else "http"
        self.address = listen.Address(address.host, self._listener.getsockname()[1], scheme)
        self._uvicorn = _uvicorn_config(self._outermost, settings)
        self._state = ServerState()
        self._warn_if_open()

    async def serve(self) -> None:
        """Serve until `end` or a signal."""
        self._ending, self._hurry, self._reload_wanted = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.connections = Connections(
            self._listener,
            self._settings,
            lambda: BoundedProtocol(self._uvicorn, self._state, {}, settings=self._settings),
        )
        self.connections.context = self._files.context
        self.connections.start()
        works = [self._watch_files, *([self._service.background] if self._service.background else [])]
        tasks = [asyncio.create_task(_logging_failure(work)) for work in works]
        with self._handling_signals():
            self._service.started(self.address)
            await self._ending.wait()
            for task in tasks:
                task.cancel()
            if cut_off := await self.connections.stop(self._hurry):
                after = format_duration(self._settings.drain_timeout)
                event(log, logging.WARNING, "requests cut off", count=cut_off, after=after)
            await self._cancel_requests()
        await asyncio.gather(*tasks, return_exceptions=True)

    def end(self) -> None:
        """Drain and return from `serve`; the second call skips the drain. For the loop's own thread."""
        if self._ending.is_set():
            self._hurry.set()
        self._ending.set()

    def reload(self) -> None:
        """Read the config and the web config file again, soon. For the loop's own thread."""
        self._reload_wanted.set()

    @contextlib.contextmanager
    def _handling_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGTERM: self.end, signal.SIGINT: self.end, signal.SIGHUP: self.reload}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    async def _cancel_requests(self) -> None:
        """Cancel requests whose client is gone."""
        await asyncio.sleep(0)  # their protocols learn first that the connection is lost
        if tasks := list(self._state.tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)

    async def _watch_files(self) -> None:
        """Reload when asked to, and when a certificate or a user has changed."""
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._reload_wanted.wait(), WATCH_SECONDS)
            asked = self._reload_wanted.is_set()
            self._reload_wanted.clear()
            if asked or self._files.changed():
                await self._reload(asked)

    async def _reload(self, asked: bool) -> None:
        try:
            reload = self._service.reload() if asked else None
            settings = reload.web if reload else self._settings
            files = config.read_files(settings.config_file)
        except GpufragError as error:
            self._files = self._files.restamped()
            event(log, logging.ERROR, "reload failed; the old config stays in effect", reason=error)
            return
        if settings.listen_address != self._bound:
            event(log, logging.WARNING, "a new listen address needs a restart", address=settings.listen_address)
        self._settings = self._slots.settings = self._checks.settings = self.connections.settings = settings
        self._uvicorn.timeout_keep_alive = settings.keep_alive  # type: ignore[assignment] # a float works
        self._take_files(files)
        if reload:
            await reload.apply()
        event(log, logging.INFO, "config reloaded")

    def _take_files(self, new: config.WebFiles) -> None:
        if new.web.basic_auth_users != self._files.web.basic_auth_users:
            self._auth.passwords = Passwords(new.web.basic_auth_users)
        self._outermost.headers = new.web.http_server_config.headers
        self.connections.context = new.context
        old, self._files = self._files, new
        gone = [name for name in old.web.protections if name not in new.web.protections]
        if gone:
            off = ", ".join(gone)
            event(log, logging.WARNING, "the web config file no longer sets a protection", off=off, file=new.path)
            self._warn_if_open()

    def _warn_if_open(self) -> None:
        if not (self.address.loopback or self._files.web.authenticates or self._service.token is not None):
            text = "no password: everyone who can connect has access; set one with --web.config.file"
            event(log, logging.WARNING, text, address=self.address)


async def _logging_failure(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await work()
    except Exception:  # the server goes on
        log.exception("background task failed")


def _uvicorn_config(app: ASGIApp, settings: WebSettings) -> Config:
    """Only what is used: no WebSocket, no lifespan, no faster parser that needs more memory, no access log."""
    return Config(
        app,
        loop="none",
        http="h11",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=settings.keep_alive,  # type: ignore[arg-type]
        h11_max_incomplete_event_size=settings.max_header_size,
    )
