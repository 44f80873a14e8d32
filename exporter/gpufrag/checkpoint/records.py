"""What is said between those who ask for a checkpoint and the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import GpufragError
from ..wire import codec as json_record

IDLE, PREPARED, PROMISED, CONFIRMED, SAVED, FAILED = "idle", "prepared", "promised", "confirmed", "saved", "failed"
"""The states of a rank."""
COMMANDS = ("prepare", "at", "confirm", "status", "release", "cancel")


class NotSaved(GpufragError):
    """The ranks were asked and did not all save; the text says which, and why."""


@dataclass(frozen=True)
class RankState:
    """What a rank answers to every command: what it is, and how far it has come with the checkpoint `id`."""

    host: str
    pid: int
    rank: int | None = None
    world_size: int | None = None
    id: str | None = None
    """Of the checkpoint that it takes part in; None: in none."""
    state: str = IDLE
    callback: bool = False
    """Whether its program has told how to save."""
    step: int | None = None
    """The last one that has ended; None before the first."""
    step_seconds: float | None = None
    target: int | None = None
    """The step that it has promised to stop at."""
    path: str | None = None
    error: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.host, self.pid

    def __str__(self) -> str:
        return f"pid {self.pid} of {self.host}" if self.rank is None else f"rank {self.rank}"


@dataclass(frozen=True)
class Heard:
    """The answers to one command."""

    ranks: tuple[RankState, ...] = ()
    silent: tuple[str, ...] = ()
    """Who should have answered and did not, with the reason: a sentence each."""

    def as_json(self) -> dict[str, Any]:
        return {"ranks": [asdict(one) for one in self.ranks], "silent": list(self.silent)}


@dataclass(frozen=True)
class Ask:
    """What is to be sent to every rank, `after` so many seconds."""

    command: str
    fields: Mapping[str, Any]
    after: float = 0.0


@dataclass(frozen=True)
class Terms:
    """All times in seconds."""

    id: str
    """Names this checkpoint among all."""
    timeout: float
    """Until all have saved."""
    patience: float = 30.0
    """How long a rank waits at its step for the word to save."""
    hold: float = 60.0
    """How long a rank that has saved waits to be released after it was last asked how it stands; then it trains on."""
    lead: float = 1.0
    """How far ahead the first step lies that is tried; a rank that had passed it makes the next four times as far."""


@dataclass(frozen=True)
class Saved:
    """All ranks have saved at `step`, and wait to be released."""

    step: int
    path: str | None
    ranks: int


def release(checkpoint: str, *, end: bool) -> Ask:
    """For ranks that have saved: end with a code that is not 0, or train on."""
    return Ask("release", {"id": checkpoint, "exit": end})


def decode(raw: Any) -> Heard:
    """What `Heard.as_json` gave. Raises json_record.Misfit."""
    return json_record.read(Heard, raw)


def decode_rank(raw: Any) -> RankState:
    """What a rank answered. Raises json_record.Misfit."""
    return json_record.read(RankState, raw)
