"""What several test folders share. On the path of every test: `from helpers import …`."""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import Heap, parse
from gpufrag.model.trace.events import Event, parse_rows

TESTS = Path(__file__).parent
SNAPSHOTS = TESTS / "fixtures" / "snapshots"
GOLDEN_NAMES = tuple(sorted(path.name.removesuffix(".json.gz") for path in (TESTS / "golden").glob("*.json.gz")))


@dataclass(frozen=True)
class GoldenCase:
    """One recorded process; `raw` is its file (keys: tests/golden/README.md)."""

    name: str
    raw: dict[str, Any]

    @property
    def snapshot(self) -> dict[str, Any]:
        """As torch.cuda.memory._snapshot() returns it."""
        settings = {**self.raw["settings"], "torch": self.raw["torch"]}
        return {"segments": self.raw["segments"], "allocator_settings": settings}

    @cached_property
    def heap(self) -> Heap:
        return parse(self.snapshot)

    @cached_property
    def events(self) -> list[Event]:
        return parse_rows(self.raw["events"], self.raw["events_columns"])

    @property
    def driver(self) -> Driver:
        """The driver's reading at the snapshot."""
        return Driver(self.raw["driver_free"], self.raw["driver_total"], self.raw["cap_bytes"] or None)


@cache
def golden_case_named(name: str) -> GoldenCase:
    """Read once a session: tests must not change what is in `raw`."""
    with gzip.open(TESTS / "golden" / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        return GoldenCase(name, json.load(file))


def kept(path: Path, text: str) -> None:
    """Assert that the file has this text; with GPUFRAG_UPDATE=1, write it."""
    if os.environ.get("GPUFRAG_UPDATE"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run with GPUFRAG_UPDATE=1"


def kept_block(page: Path, block: str, lines: Iterable[str]) -> None:
    """Assert that the generated block of the page has these lines; with GPUFRAG_UPDATE=1, write them."""
    marks = re.compile(rf"(<!-- {block}: begin[^\n]*-->\n).*?(<!-- {block}: end -->)", re.DOTALL)
    body = "".join(f"{line}\n" for line in lines)
    text, found = marks.subn(lambda mark: f"{mark[1]}{body}{mark[2]}", page.read_text(encoding="utf-8"))
    assert found == 1, f"{page.name} has no block {block}"
    kept(page, text)


def wait_until(true: Callable[[], object], patience: float = 10.0) -> None:
    """Return once `true()` is; fail after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, "not true in time"
        time.sleep(0.01)
