"""Listen addresses and listening sockets."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from typing import Any, NamedTuple

from ..errors import Unavailable, UsageError

BACKLOG = 128
_FORM = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:\s]*)):([0-9]{1,5})")


class Address(NamedTuple):
    """An empty host is every interface, port 0 any free port."""

    host: str
    port: int
    scheme: str = "http"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only programs on this host can connect."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse(text: str, where: str = "") -> Address:
    """Read `host:port`, `[v6]:port` or `:port`. Raises UsageError, which begins with `where`."""
    found = _FORM.fullmatch(text.strip())
    if found is None or int(found[3]) > 65535:
        place = f"{where}: " if where else ""
        raise UsageError(f"{place}{text!r:.80} is not a listen address; write host:port, [::1]:port or :port")
    return Address(found[1] or found[2] or "", int(found[3]))


def bind(address: Address) -> socket.socket:
    """Return a listening socket. Raises Unavailable."""
    try:
        family, kind, protocol, target = _resolve(address)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Unavailable(f"cannot listen on {address}: {_reason(error)}; use an address of this host") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(bool(address.host)))
        listener.bind(target)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        remedy = "use an address of this host with --host"
        if error.errno == errno.EADDRINUSE:
            remedy = "stop the other process, or choose another port with --port"
        elif error.errno in (errno.EACCES, errno.EPERM):
            remedy = "choose a port above 1023 with --port"
        raise Unavailable(f"cannot listen on {address}: {_reason(error)}; {remedy}") from None
    return listener


def _resolve(address: Address) -> tuple[socket.AddressFamily, socket.SocketKind, int, Any]:
    """Return the first of the host's addresses; for every interface IPv6 with IPv4, if there is IPv6."""
    host = address.host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")
    found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, target = found[0]
    return family, kind, protocol, target


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
