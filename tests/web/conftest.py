"""Real servers on loopback."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import bcrypt
import pytest

from certificates import certificate, make_certificate  # noqa: F401 (fixtures)
from running_server import Gate, Running, hello, running

Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server on any free port; keyword arguments are its WebSettings. All are stopped at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda service=None, **settings: stack.enter_context(running(service or hello(), **settings))


@pytest.fixture(scope="session")
def hashed() -> Callable[[str], str]:
    """A bcrypt hash at the lowest cost, as the web config file requires."""
    return lambda password: bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a web config file, or another one."""

    def write_text(text: str, name: str = "web.yml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_text


@pytest.fixture
def gate() -> Iterator[Gate]:
    with contextlib.closing(Gate()) as gate:
        yield gate
