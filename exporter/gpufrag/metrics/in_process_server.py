"""/metrics from the training process itself, for people without a sidecar."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from ..errors import Unavailable
from ..wire import descriptors
from ..wire.error_counter import ErrorCounter
from ..wire.sample import ProcessSample
from ..wire.threads import start_thread
from .view import Fleet, RankView

MAX_CONNECTIONS = 16
"""Each takes a thread of the training process; further ones are closed at once."""
REQUEST_TIMEOUT = 10.0
"""Seconds for a scraper to send its request."""
TAKE_OVER_TIMEOUT, TAKE_OVER_PAUSE = 10.0, 0.2
"""Seconds for which a forked child waits for its parent to release the port."""


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the log belongs to the program."""


class _Server(ThreadingMixIn, WSGIServer):
    """Its threads take no signal, as the thread that starts them: a scraper that leaves cannot raise SIGPIPE."""

    daemon_threads = True
    _connections = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def server_bind(self) -> None:
        self.inode = descriptors.inode_of(self.socket)
        super().server_bind()

    def server_close(self) -> None:
        descriptors.close(self.socket, self.inode)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread is available: the base class closes the connection
            self._connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that left is no error of the program's."""

    def service_actions(self) -> None:
        """Called twice a second: a forked child that uses a device takes the port over from a parent that uses none.

        Raises ConnectionError if the program has closed our descriptor, which ends `serve_forever`.
        """
        if not descriptors.is_open(self.socket, self.inode):
            raise ConnectionError("the program closed our socket")
        if _wanted_by_child is not None and _wanted_by_child[0] and (_serving is None or _serving.latest() is None):
            start_thread(close, "gpufrag-serve-close")

    def get_request(self) -> tuple[socket.socket, Any]:
        if not descriptors.is_open(self.socket, self.inode):  # it may be a listening socket of the program
            raise ConnectionError("the program closed our socket")
        return super().get_request()

    def serve(self) -> None:
        with contextlib.suppress(ConnectionError):
            self.serve_forever()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Serving(NamedTuple):
    server: _Server
    port: int
    host: str
    latest: Callable[[], ProcessSample | None]


_serving: _Serving | None = None
_inherited: _Serving | None = None
"""In a forked child: what its parent serves."""
_wanted_by_child: mmap.mmap | None = None
"""One byte shared with forked children; 1 if one of them requests the port."""


def serve(port: int, host: str, latest: Callable[[], ProcessSample | None]) -> None:
    """Answer scrapes on `host:port` with `latest()` until `close`. A second call does nothing.

    Raises Unavailable without prometheus_client, or if the address is not available.
    """
    global _serving, _wanted_by_child
    if _serving is not None:
        return
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app

        from . import FleetCollector
    except ImportError as error:
        raise Unavailable(
            f"start(port=…) needs {error.name}: pip install prometheus_client, or run a sidecar"
        ) from None
    registry = CollectorRegistry()
    registry.register(FleetCollector(lambda: Fleet(time.time(), (RankView(sample),) if (sample := latest()) else ())))
    try:
        server = (_Server6 if ":" in host else _Server)((host, port), _Handler)
    except OSError as error:
        raise Unavailable(f"cannot listen on {host}:{port}: {_reason(error)}") from None
    except OverflowError:
        raise Unavailable(f"cannot listen on {host}:{port}: no such port; use 1 to 65535") from None
    server.set_app(make_wsgi_app(registry))
    _wanted_by_child = mmap.mmap(-1, 1)
    _serving = _Serving(server, port, host, latest)
    try:
        start_thread(server.serve, "gpufrag-serve")
    except RuntimeError as error:
        _serving = None
        server.server_close()
        remedy = "raise the limit of threads, or run a sidecar"
        raise Unavailable(f"cannot listen on {host}:{port}: {error}; {remedy}") from None


def take_over(errors: ErrorCounter) -> None:
    """In a forked child that uses a device: serve in place of a parent that uses none (gunicorn --preload)."""
    if _inherited is None or _serving is not None:
        return
    try:
        start_thread(_take_over, "gpufrag-serve-take-over", errors)
    except RuntimeError as error:
        errors.note("serve", error, "this process serves no metrics; run a sidecar")


def close() -> None:
    """Stop answering."""
    global _serving
    serving, _serving = _serving, None
    if serving is not None:
        serving.server.shutdown()
        serving.server.server_close()


def _take_over(errors: ErrorCounter) -> None:
    global _inherited
    inherited, _inherited = _inherited, None
    if inherited is None:
        return None
    if _wanted_by_child is not None:
        _wanted_by_child[0] = 1
    deadline = time.monotonic() + TAKE_OVER_TIMEOUT
    while True:
        try:
            return serve(inherited.port, inherited.host, inherited.latest)
        except Unavailable as error:
            if time.monotonic() > deadline:
                errors.note("serve", error, "another process of the job serves its metrics there; run a sidecar")
                return None
        time.sleep(TAKE_OVER_PAUSE)


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; use another port for each process of this host, or one sidecar for all"
    return f"{error.strerror or error}; use an address of this host"


def _in_forked_child() -> None:
    """The port belongs to the parent and must not outlive it."""
    global _serving, _inherited
    serving, _serving = _serving, None
    if serving is not None:
        serving.server.server_close()
        _inherited = serving


os.register_at_fork(after_in_child=_in_forked_child)
