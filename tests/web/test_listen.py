"""Listen addresses, and the error for each that does not work."""

from __future__ import annotations

import socket

import pytest

from gpufrag.errors import Unavailable, UsageError
from gpufrag.web.listen import Address, bind, parse


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("127.0.0.1:9836", Address("127.0.0.1", 9836), True),
        ("localhost:1", Address("localhost", 1), True),
        ("[::1]:9836", Address("::1", 9836), True),
        ("127.8.8.8:9836", Address("127.8.8.8", 9836), True),
        (":9836", Address("", 9836), False),
        ("0.0.0.0:9836", Address("0.0.0.0", 9836), False),
        ("[::]:0", Address("::", 0), False),
        ("node-1.example:9836", Address("node-1.example", 9836), False),
    ],
)
def test_listen_address_is_read(text: str, address: Address, loopback: bool) -> None:
    assert (parse(text), parse(text).loopback, str(parse(text))) == (address, loopback, text)


@pytest.mark.parametrize(
    "text", ["9836", "localhost", "::1:9836", "a:b", "host:65536", "host:-1", "", "http://a:80", "a b:1"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a listen address; write host:port"):
        parse(text)


def test_port_in_use_is_reported_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port}: address already in use; stop .* --port"):
            bind(Address("127.0.0.1", port))


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_address_of_another_host_is_reported(host: str) -> None:
    with pytest.raises(Unavailable, match=f"cannot listen on {host}:0: .*; use an address of this host"):
        bind(Address(host, 0))


def test_every_interface_includes_loopback() -> None:
    with bind(Address("", 0)) as listener:
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=5).close()
