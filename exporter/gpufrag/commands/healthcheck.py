"""`gpufrag healthcheck`: does the sidecar of this container answer, wherever and however it was told to listen?"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..web.listen import Address

PATIENCE = 2.0  # seconds
EVERY_INTERFACE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pid", type=int, help="its process (default: the first one that runs gpufrag serve)")


def run(options: argparse.Namespace, proc: Path = Path("/proc")) -> int:
    from ..errors import Unavailable
    from ..web import config, listen
    from . import serve

    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    web = serve.configured(parser.parse_args(_arguments(proc, options.pid))).web
    address = listen.parse(web.listen_address)
    tls = config.load(web.config_file).tls_server_config if web.config_file else None
    mutual = tls is not None and tls.mutual
    try:
        _ask(address, tls is not None, mutual)
    except (OSError, HTTPException) as error:
        raise Unavailable(f"the sidecar at {address} gives no answer ({error}); its log says why") from None
    print(f"{address}: healthy")
    return 0


def _arguments(proc: Path, pid: int | None) -> Sequence[str]:
    """What stands behind `gpufrag serve` on the command line of the process. Raises Unavailable where there is none."""
    from ..errors import Unavailable

    numbers = [pid] if pid else sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())
    for number in numbers:
        words = _words(proc / str(number) / "cmdline")
        for place, pair in enumerate(pairwise(words), 2):
            if (os.path.basename(pair[0]), pair[1]) == ("gpufrag", "serve"):
                return words[place:]
    raise Unavailable("no process here runs gpufrag serve; name it with --pid, if it is hidden")


def _words(cmdline: Path) -> list[str]:
    try:
        return os.fsdecode(cmdline.read_bytes()).split("\0")[:-1]
    except OSError:  # it has ended, or is another user's
        return []


def _ask(address: Address, tls: bool, mutual: bool) -> None:
    """Raises OSError or HTTPException for no answer, or a bad one. Where a client must show a certificate, that the
    server misses ours is proof enough that it lives."""
    import ssl

    host = EVERY_INTERFACE.get(address.host, address.host)
    if tls:
        anything = ssl.create_default_context()  # it is the certificate of a public name, and this is loopback
        anything.check_hostname, anything.verify_mode = False, ssl.CERT_NONE
        connection: HTTPConnection = HTTPSConnection(host, address.port, timeout=PATIENCE, context=anything)
    else:
        connection = HTTPConnection(host, address.port, timeout=PATIENCE)
    try:
        connection.request("GET", "/-/healthy")
        status = connection.getresponse().status
    except (ssl.SSLError, ConnectionResetError):
        if not mutual:
            raise
        return
    finally:
        connection.close()
    if status != 200:
        raise HTTPException(f"status {status}")
