"""Asks all ranks whose sockets lie in one folder, and gathers what they answer about a checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from ..errors import Unavailable
from ..wire import codec as json_record
from ..wire.control_client import Answer, ControlError, NotListening, Rejected, ask_all
from ..wire.folder import SOCKET_SUFFIX, FileName
from .agree import Agreement
from .records import Ask, Heard, RankState, Saved, decode_rank

PREFIX = "checkpoint-"
PATIENCE_S = 3.0
"""For one answer. A rank answers at once, unless its interpreter is kept busy."""
MAX_ANSWER = 16 << 10
MAX_RANKS = 1000


def broadcast(folder: Path, command: str, fields: Mapping[str, Any], of: Container[int] | None = None) -> Heard:
    """What the ranks say that live now; whoever has left a socket and does not listen is dead, and left out.

    `of`: only these processes are asked, by their pids; None: all.

    Raises Unavailable where the folder cannot be read.
    """
    sockets = [path for path in _sockets(folder) if of is None or _pid(path) in of]
    outcomes = ask_all(sockets, {"command": PREFIX + command, **fields}, PATIENCE_S, MAX_ANSWER)
    answers = [_read(path, outcomes[path]) for path in sockets]
    return Heard(
        tuple(answer for answer in answers if isinstance(answer, RankState)),
        tuple(answer for answer in answers if isinstance(answer, str)),
    )


def lead(
    agreement: Agreement,
    ask: Callable[[Ask], Heard],
    sleep: Callable[[float], object] = time.sleep,
) -> Saved | None:
    """Carry an agreement to its end, in this thread. Raises NotSaved, and what `ask` raises."""
    try:
        wanted = next(agreement)
        while True:
            if wanted.after:
                sleep(wanted.after)
            wanted = agreement.send(ask(wanted))
    except StopIteration as end:
        result: Saved | None = end.value
        return result


def in_folder(folder: Path) -> Callable[[Ask], Heard]:
    """What `lead` asks, where all ranks have one folder."""
    return lambda ask: broadcast(folder, ask.command, ask.fields)


def _sockets(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if _is_ranks(entry))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unavailable(f"{folder}: {error.strerror}; it must be the folder of the job ($GPUFRAG_DIR)") from None
    if len(names) > MAX_RANKS:
        raise Unavailable(f"{folder}: over {MAX_RANKS} sockets: more than one job's")
    return [folder / name for name in names]


def _pid(path: Path) -> int | None:
    name = FileName.parse(path.name)
    return name.pid if name else None


def _is_ranks(entry: os.DirEntry[str]) -> bool:
    named = entry.name.endswith(SOCKET_SUFFIX) and FileName.parse(entry.name) is not None
    return named and not entry.is_symlink()


def _read(path: Path, outcome: Answer | ControlError) -> RankState | str | None:
    """The rank's answer, or a sentence on why there is none; None where nobody listens."""
    if isinstance(outcome, NotListening):
        return None
    if isinstance(outcome, Rejected):
        return f"{path.stem}: {outcome}"
    if isinstance(outcome, ControlError):
        return str(outcome)
    try:
        return decode_rank(outcome)
    except json_record.Misfit as error:
        return f"{path.name}: an answer that is none ({error})"
