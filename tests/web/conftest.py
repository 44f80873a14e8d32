"""Real servers on loopback, and made certificates."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import pytest

from running_server import Running, hello, running

Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server on any free port; keyword arguments are its WebSettings. All are stopped at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda service=None, **settings: stack.enter_context(running(service or hello(), **settings))


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path


@pytest.fixture(scope="session")
def make_certificate(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Certificate]:
    """Self-made, for 127.0.0.1; each call makes another."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command: TLS cannot be tested")

    def make(name: str) -> Certificate:
        folder = tmp_path_factory.mktemp(name)
        cert, key = folder / "tls.crt", folder / "tls.key"
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj"
        subject = [f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
        subprocess.run([*command.split(), *subject], check=True, capture_output=True)
        return Certificate(cert, key)

    return make


@pytest.fixture(scope="session")
def certificate(make_certificate: Callable[[str], Certificate]) -> Certificate:
    return make_certificate("server")


@pytest.fixture(scope="session")
def hashed() -> Callable[[str], str]:
    """A bcrypt hash at the lowest cost, as the web config file wants it."""
    return lambda password: bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a web config file, or another one."""

    def write_text(text: str, name: str = "web.yml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_text
