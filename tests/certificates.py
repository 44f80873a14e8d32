"""Certificates created for the tests; each folder's conftest.py imports the fixtures it needs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


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
