"""The command line in this process, and sidecars as processes that end with the test."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from certificates import certificate, make_certificate  # noqa: F401 (fixtures)
from gpufrag.cli import main
from serving import Serving

Serve = Callable[..., Serving]


class Cli:
    """Runs `gpufrag WORDS`; words may be paths."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *self._capsys.readouterr()

    def text(self, *words: object) -> str:
        code, out, err = self.run(*words)
        assert code == 0, err
        return out

    def json(self, *words: object) -> Any:
        return json.loads(self.text(*words, "--json"))

    def device(self, *words: object) -> Any:
        """The record of the only device."""
        (found,) = self.json(*words)["devices"]
        return found

    def refusal(self, *words: object) -> tuple[int, str]:
        """The exit code and the only line, which is on stderr."""
        code, out, err = self.run(*words)
        assert (out, err.count("\n")) == ("", 1)
        return code, err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture
def save(tmp_path: Path) -> Callable[[Any], Path]:
    """Writes a snapshot to a pickle of its own."""

    def write(snapshot: Any) -> Path:
        path = tmp_path / f"snapshot-{len(list(tmp_path.iterdir()))}.pickle"
        path.write_bytes(pickle.dumps(snapshot, 4))
        return path

    return write


@pytest.fixture
def serve() -> Iterator[Serve]:
    started: list[Serving] = []

    def begin(*arguments: object, **environment: str) -> Serving:
        started.append(Serving(*map(str, arguments), **environment))
        return started[-1]

    yield begin
    for one in started:
        one.close()
