"""Runs an ASGI app until a signal ends it: SIGTERM and SIGINT drain, SIGHUP reloads.

uvicorn does the serving. What it lacks is here: listeners whose TLS can be replaced while they listen, a bound
on the TLS handshake, reloading, and an exit code of 0 after a drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from uvicorn import Config, Server

from ..config.sidecar import WebSettings
from ..errors import GpufragError
from ..logs import event
from . import files, listen
from .auth import BasicAuth, Passwords
from .headers import WithHeaders
from .limits import Bounds, protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from .bearer import TokenFile

WATCH_SECONDS = 5.0
log = logging.getLogger(__name__)


class Reload(NamedTuple):
    """A config that was read and found good, but is not in force yet."""

    web: WebSettings
    apply: Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Service:
    """What to serve."""

    app: ASGIApp
    methods: tuple[str, ...] = ("GET", "HEAD")
    """Answered by the app; all others are refused before it."""
    max_body: int = 0
    """Bytes of a request's body."""
    open_paths: frozenset[str] = frozenset()
    """Need no password: health probes."""
    token: TokenFile | None = None
    """Admits programs beside the users of the web config file."""
    reload: Callable[[], Reload | None] = lambda: None
    """Asked on SIGHUP for a new config; raises GpufragError to keep the old one."""
    started: Callable[[listen.Address], None] = lambda address: None
    """Told where the server listens, once it does."""
    background: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Runs beside the server, and is cancelled at its end."""


def run(service: Service, settings: WebSettings) -> None:
    """Serve until a signal. Raises Unavailable, BadInput or UsageError if it cannot begin."""
    asyncio.run(WebServer(service, settings).serve())


class WebServer(Server):
    """One app on one address. It binds when it is made: what is wrong is known before anything is served."""

    def __init__(self, service: Service, settings: WebSettings) -> None:
        address = listen.parse(settings.listen_address)
        self._service, self._settings, self._bound = service, settings, settings.listen_address
        self._files = files.read(settings.config_file)
        users = Passwords(self._files.web.basic_auth_users)
        self._auth = BasicAuth(service.app, users, service.open_paths, service.token)
        self._bounds = Bounds(self._auth, settings, service.methods, service.max_body)
        self._outermost = WithHeaders(self._bounds, self._files.web.http_server_config.headers)
        self._listener = listen.bind(address)
        self.address = listen.Address(address.host, self._listener.getsockname()[1])
        super().__init__(_uvicorn_config(self._outermost, settings))
        self._tell_if_open()

    def _tell_if_open(self) -> None:
        if self.address.loopback or self._files.web.authenticates or self._service.token is not None:
            return
        told = "open to all who can connect; set a password with --web.config.file"
        event(log, logging.WARNING, told, address=self.address)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """In uvicorn's place: our own listener."""
        self.servers = [await self._listen()]
        self.started = True
        self._tasks = [asyncio.create_task(self._mind_files())]
        if self._service.background:
            self._tasks.append(asyncio.create_task(self._service.background()))
        self._service.started(self.address)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._tasks:
            task.cancel()
        self._listener.close()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):  # what did not end in time
            connection.transport.abort()

    async def _wait_tasks_to_complete(self) -> None:
        """In uvicorn's place, to which a request that outlasts the drain is an error, and then another."""
        try:
            await asyncio.wait_for(super()._wait_tasks_to_complete(), self._settings.drain_timeout)
        except asyncio.TimeoutError:
            await self._cut_off()

    async def _cut_off(self) -> None:
        tasks = list(self.server_state.tasks)
        if tasks:
            event(log, logging.WARNING, "requests cut off", count=len(tasks), after=f"{self._settings.drain_timeout}s")
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # first the protocols learn that nobody waits for an answer
        for task in tasks:
            task.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """In uvicorn's place, which raises the signal again after the drain: an orderly end is no failure."""
        self._asked_to_reload = asyncio.Event()
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

    def end(self) -> None:
        """Drain and return from `serve`; asked twice, at once."""
        self.force_exit = self.should_exit
        self.should_exit = True

    def reload(self) -> None:
        """Read the config and the web config file anew, soon. For the loop's own thread."""
        self._asked_to_reload.set()

    async def _listen(self) -> asyncio.Server:
        """A server on a copy of the listening socket: closing it leaves the socket, and who waits in it, alone."""
        loop = asyncio.get_running_loop()
        context = self._files.context

        def connect() -> asyncio.Protocol:
            protocol_class = self.config.http_protocol_class
            return protocol_class(config=self.config, server_state=self.server_state, app_state={}, _loop=loop)  # type: ignore[call-arg]

        return await loop.create_server(
            connect,
            sock=self._listener.dup(),
            backlog=listen.BACKLOG,
            ssl=context,
            ssl_handshake_timeout=self._settings.request_timeout if context else None,
        )

    async def _mind_files(self) -> None:
        """Reload when asked to, and without being asked when a certificate or a user has changed."""
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._asked_to_reload.wait(), WATCH_SECONDS)
            asked = self._asked_to_reload.is_set()
            self._asked_to_reload.clear()
            if asked or self._files.changed():
                await self._reload(asked)

    async def _reload(self, asked: bool) -> None:
        try:
            reload = self._service.reload() if asked else None
            settings = reload.web if reload else self._settings
            found = files.read(settings.config_file)
        except GpufragError as error:
            self._files = files.restamp(self._files)
            event(log, logging.ERROR, "reload failed, the old config stays", reason=error)
            return
        self._take_settings(settings)
        self._take_files(found)
        if reload:
            await reload.apply()
        old, self.servers = self.servers, [await self._listen()]
        for server in old:
            server.close()
        event(log, logging.INFO, "config reloaded")

    def _take_settings(self, settings: WebSettings) -> None:
        if settings.listen_address != self._bound:
            event(log, logging.WARNING, "a new listen address needs a restart", address=settings.listen_address)
        self._settings = self._bounds.settings = settings
        self.config.http_protocol_class = protocol(settings)
        self.config.timeout_keep_alive = settings.keep_alive  # type: ignore[assignment]

    def _take_files(self, new: files.WebFiles) -> None:
        if new.web.basic_auth_users != self._files.web.basic_auth_users:
            self._auth.passwords = Passwords(new.web.basic_auth_users)
        self._outermost.headers = new.web.http_server_config.headers
        old, self._files = self._files, new
        gone = [name for name in old.web.protections if name not in new.web.protections]
        if gone:
            event(log, logging.WARNING, "the web config file no longer protects", off=", ".join(gone), file=new.path)
            self._tell_if_open()


def _uvicorn_config(app: ASGIApp, settings: WebSettings) -> Config:
    """Only what is served: no WebSocket, no lifespan, no faster parser that would cost memory, no access log."""
    return Config(
        app,
        loop="asyncio",
        http=protocol(settings),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive,  # type: ignore[arg-type]
        h11_max_incomplete_event_size=settings.max_header_size,
    )
