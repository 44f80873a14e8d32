"""Sidecars as processes, ended with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from certificates import certificate, make_certificate  # noqa: F401 (fixtures)
from serving import Serving

Serve = Callable[..., Serving]


@pytest.fixture
def serve() -> Iterator[Serve]:
    started: list[Serving] = []

    def begin(*arguments: object, **environment: str) -> Serving:
        started.append(Serving(*map(str, arguments), **environment))
        return started[-1]

    yield begin
    for one in started:
        one.close()
