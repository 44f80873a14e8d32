"""Request targets: which are accepted, and the answers to others."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gpufrag.web.asgi import make_app
from gpufrag.web.runner import Service


async def _echo(request: Request) -> Response:
    return PlainTextResponse(f"{request.url.path}?{request.url.query}")


SERVICE = Service(make_app([Route("/", _echo), Route("/metrics", _echo)]), open_paths=frozenset({"/"}))


def ask(server: Any, target: str) -> tuple[str, str]:
    """The status and the body."""
    answer = server.send(f"GET {target} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
    head, _, body = answer.decode().partition("\r\n\r\n")
    assert "evil.example" not in head + body
    return head.split()[1], body


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        ("/metrics?a=b", "/metrics?a=b"),
        ("http://evil.example/metrics?a=b", "/metrics?a=b"),
        ("HTTPS://127.0.0.1:9836/metrics", "/metrics?"),
        ("http://evil.example", "/?"),
        ("http://evil.example?a=b", "/?a=b"),
    ],
)
def test_absolute_target_is_the_same_request(start: Any, target: str, seen: str) -> None:
    assert ask(start(SERVICE), target) == ("200", seen)


@pytest.mark.parametrize("target", ["/metrics/", "//evil.example/", "http://evil.example/metrics/", "/metrics//"])
def test_extra_slash_is_not_found(start: Any, target: str) -> None:
    assert ask(start(SERVICE), target)[0] == "404"


def test_absolute_target_needs_a_password(start: Any, write: Any, hashed: Any) -> None:
    server = start(SERVICE, config_file=write(f"basic_auth_users: {{alice: '{hashed('x')}'}}"))
    found = [ask(server, target)[0] for target in ("/metrics", "http://x/metrics", "http://x/", "http:///metrics")]
    assert found == ["401", "401", "200", "401"]
