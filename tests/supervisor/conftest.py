"""A supervisor to start, which ends with the test."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.supervised_process import Supervised


@pytest.fixture
def start(tmp_path):
    started: list[Supervised] = []

    def run(*words: str, **how: Any) -> Supervised:
        started.append(Supervised(tmp_path, *words, **how))
        return started[-1]

    yield run
    for one in started:
        one.close()


@pytest.fixture
def started(start):
    """Like `start`; returns once the job has written `ready`."""

    def run(*words: str, **how: Any) -> Supervised:
        it = start(*words, **how)
        it.until("ready")
        return it

    return run
