"""/metrics from the training process itself, for people without a sidecar."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from ..errors import Unavailable
from ..wire.sample import ProcessSample
from .view import Fleet, RankView

CONNECTIONS = 16
"""Answered at once; further ones are closed unheard, since each costs the trainer a thread."""
PATIENCE = 10.0
"""Seconds in which a scraper must have sent its request."""
_server: _Server | None = None


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the log is the trainer's."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    _room = threading.BoundedSemaphore(CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be had: the base class closes the connection
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that left is no news to the trainer."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def serve(port: int, host: str, latest: Callable[[], ProcessSample | None]) -> None:
    """Answer scrapes on `host:port` with `latest()`, until `close`. A second call does nothing.

    Raises Unavailable where prometheus_client is missing, or the address cannot be had.
    """
    global _server
    if _server is not None:
        return
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app

        from . import FleetCollector
    except ImportError as error:
        raise Unavailable(
            f"start(port=…) needs {error.name}: pip install prometheus_client, or run a sidecar"
        ) from None
    registry = CollectorRegistry()
    registry.register(FleetCollector(lambda: _fleet(latest())))
    try:
        server = (_Server6 if ":" in host else _Server)((host, port), _Handler)
    except OSError as error:
        raise Unavailable(f"{host}:{port}: {_told(error)}") from None
    except OverflowError:
        raise Unavailable(f"{host}:{port}: no such port; give one from 1 to 65535") from None
    server.set_app(make_wsgi_app(registry))
    try:
        threading.Thread(target=server.serve_forever, name="gpufrag-serve", daemon=True).start()
    except RuntimeError as error:
        server.server_close()
        raise Unavailable(f"{host}:{port}: {error}; raise the limit on threads, or run a sidecar") from None
    _server = server


def close() -> None:
    """Stop answering."""
    global _server
    server, _server = _server, None
    if server is not None:
        server.shutdown()
        server.server_close()


def _fleet(sample: ProcessSample | None) -> Fleet:
    return Fleet(time.time(), (RankView(sample),) if sample else ())


def _told(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; give every process of this host a port of its own, or run one sidecar for all"
    return f"{error.strerror or error}; give an address of this host"


def _in_forked_child() -> None:
    """The port is the parent's, and must not outlive it."""
    global _server
    server, _server = _server, None
    if server is not None:
        server.server_close()


os.register_at_fork(after_in_child=_in_forked_child)
