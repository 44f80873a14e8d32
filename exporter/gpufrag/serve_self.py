"""/metrics from the training process itself, for people without a sidecar."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any

from .errors import Unavailable
from .sample import ProcessSample
from .view import Fleet, RankView

_server: Any = None


def serve(port: int, host: str, latest: Callable[[], ProcessSample | None]) -> None:
    """Answer scrapes on `host:port` with `latest()`, until `close`. A second call does nothing.

    Raises Unavailable where prometheus_client is missing, or the address cannot be had.
    """
    global _server
    if _server is not None:
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server

        from .metrics import FleetCollector
    except ImportError as error:
        raise Unavailable(
            f"start(port=…) needs {error.name}: pip install prometheus_client, or run a sidecar"
        ) from None
    registry = CollectorRegistry()
    registry.register(FleetCollector(lambda: _fleet(latest())))
    try:
        _server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise Unavailable(f"{host}:{port}: {_told(error)}") from None
    except OverflowError:
        raise Unavailable(f"{host}:{port}: no such port; give one from 1 to 65535") from None


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
