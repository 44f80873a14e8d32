"""One out-of-memory error as a log tells it."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.facts import Facts


@dataclass(frozen=True)
class Oom:
    line: int
    """Where its message begins, from 1."""
    source: str
    """The rank, pod or process that the launcher's prefix names; empty where there is none."""
    device: int | None
    facts: Facts
    missing: tuple[str, ...] = ()
    """What is wrong with the text itself."""
