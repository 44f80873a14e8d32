"""An address as exporters write it, and the socket that listens there."""

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
    """Where to listen; an empty host is every interface, port 0 is any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this host can connect."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse(text: str, where: str = "") -> Address:
    """`host:port`, `[v6]:port` or `:port`. Raises UsageError, which begins with `where` it was written."""
    found = _FORM.fullmatch(text.strip())
    if found is None or int(found[3]) > 65535:
        place = f"{where}: " if where else ""
        raise UsageError(f"{place}{text!r:.80} is no listen address: write host:port, [::1]:port or :port")
    return Address(found[1] or found[2] or "", int(found[3]))


def bind(address: Address) -> socket.socket:
    """A listening socket. Raises Unavailable that says what stands in the way."""
    try:
        family, kind, protocol, target = _resolve(address)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Unavailable(f"{address}: {_told(error)}; give an address of this host") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(bool(address.host)))
        listener.bind(target)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise Unavailable(f"{address}: {_told(error)}; {_remedy(error)}") from None
    return listener


def _resolve(address: Address) -> tuple[socket.AddressFamily, socket.SocketKind, int, Any]:
    """The first of the host's addresses; for every interface IPv6 with IPv4 mapped in, where there is IPv6."""
    host = address.host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")
    found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, target = found[0]
    return family, kind, protocol, target


def _told(error: OSError) -> str:
    return error.strerror or str(error)


def _remedy(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "stop what listens there, or choose another port with --port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "choose a port from 1024 up with --port"
    return "give an address of this host with --host"
