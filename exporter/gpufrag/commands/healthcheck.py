"""`gpufrag healthcheck`: ask the sidecar of this container, at the address of its command line, if it is healthy."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

TIMEOUT_S = 2.0
EVERY_INTERFACE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pid", type=int, help="process to check (default: this user's gpufrag serve)")


def run(options: argparse.Namespace, proc: Path = Path("/proc")) -> int:
    import ssl

    from ..errors import Unavailable
    from ..web import config, listen
    from ..web.client import Client, ConnectionLost
    from . import serve

    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    web = serve.configured(parser.parse_args(_arguments(proc, options.pid))).web
    address = listen.parse(web.listen_address)
    tls = config.load(web.config_file).tls_server_config if web.config_file else None
    unverified = ssl.create_default_context()  # the certificate names the public host, and this is loopback
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    target = listen.Address(EVERY_INTERFACE.get(address.host, address.host), address.port)
    client = Client(f"{'https' if tls else 'http'}://{target}", TIMEOUT_S, context=unverified)
    try:
        answer = client.get("/-/healthy")
        if answer.status != 200:
            raise Unavailable(f"the sidecar at {address} answered with status {answer.status}; see its log")
    except ConnectionLost:
        if tls is None or not tls.mutual:  # else: the server is alive, it asked for our certificate
            raise
    print(f"{address}: healthy")
    return 0


def _arguments(proc: Path, pid: int | None) -> Sequence[str]:
    """Return the arguments of a running `gpufrag serve`. Raises Unavailable if there is not exactly one."""
    from ..errors import Unavailable

    if pid is not None:
        words = _command_line(proc / str(pid))
        found = _serve_arguments(words)
        if found is None:
            runs = f"it runs {' '.join(words)[:80]}" if words else "there is no such process, or it is another user's"
            raise Unavailable(f"process {pid} is not gpufrag serve ({runs}); omit --pid to search for it")
        return found
    by_pid = {}
    for number in sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()):
        found = _serve_arguments(_command_line(proc / str(number)))
        if found is not None and _is_ours(proc, number):
            by_pid[number] = found
    if not by_pid:
        raise Unavailable("no process of this user and network namespace runs gpufrag serve; name it with --pid")
    if len(by_pid) > 1:
        pids = ", ".join(map(str, by_pid))
        raise Unavailable(f"several processes run gpufrag serve (pids {pids}); choose one with --pid")
    return next(iter(by_pid.values()))


def _serve_arguments(words: Sequence[str]) -> Sequence[str] | None:
    for place, (program, command) in enumerate(pairwise(words), 2):
        if (os.path.basename(program), command) == ("gpufrag", "serve"):
            return words[place:]
    return None


def _is_ours(proc: Path, pid: int) -> bool:
    """A sidecar of another user or container does not count."""
    try:
        same_user = (proc / str(pid)).stat().st_uid == os.geteuid()
        return same_user and os.readlink(proc / str(pid) / "ns/net") == os.readlink(proc / "self/ns/net")
    except OSError:  # it ended
        return False


def _command_line(process: Path) -> list[str]:
    try:
        return os.fsdecode((process / "cmdline").read_bytes()).split("\0")[:-1]
    except OSError:
        return []
