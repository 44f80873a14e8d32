"""Asks all ranks whose sockets lie in one folder, and gathers what they answer about a checkpoint."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..errors import Unavailable
from ..wire import codec as json_record
from ..wire.folder import SOCKET_SUFFIX, FileName, socket_address
from .agree import Agreement
from .records import Ask, Heard, RankState, Saved, decode_rank

PREFIX = "checkpoint-"
PATIENCE_S = 3.0
"""For one answer. A rank answers at once, unless its interpreter is kept busy."""
AT_ONCE = 16
MAX_ANSWER = 16 << 10
MAX_RANKS = 1000


def broadcast(folder: Path, command: str, fields: Mapping[str, Any], of: Container[int] | None = None) -> Heard:
    """What the ranks say that live now; whoever has left a socket and does not listen is dead, and left out.

    `of`: only these processes are asked, by their pids; None: all.

    Raises Unavailable where the folder cannot be read.
    """
    line = json.dumps({"command": PREFIX + command, **fields}).encode() + b"\n"
    sockets = [path for path in _sockets(folder) if of is None or _pid(path) in of]
    if not sockets:
        return Heard()
    with ThreadPoolExecutor(min(AT_ONCE, len(sockets))) as pool:
        answers = [answer for answer in pool.map(lambda path: _ask(path, line), sockets) if answer is not None]
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


def _ask(path: Path, line: bytes) -> RankState | str | None:
    """The rank's answer, or a sentence on why there is none; None where nobody listens."""
    try:
        answer = json_record.loads(_exchange(path, line))
        if answer.get("ok") is not True:
            return f"{path.stem}: {answer.get('error')!s:.300}"
        return decode_rank(answer)
    except (ConnectionRefusedError, FileNotFoundError):
        return None
    except (OSError, Unavailable) as error:
        return f"{path.stem}: no answer ({error})"
    except (ValueError, RecursionError, AttributeError, json_record.Misfit) as error:
        return f"{path.stem}: an answer that is none ({error})"


def _exchange(path: Path, line: bytes) -> bytes:
    """The line with which it is answered. Raises OSError, TimeoutError among them."""
    deadline = time.monotonic() + PATIENCE_S
    answer = b""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(PATIENCE_S)
        with socket_address(path) as address:
            caller.connect(address)
        caller.sendall(line)
        while b"\n" not in answer and len(answer) <= MAX_ANSWER and time.monotonic() < deadline:
            chunk = caller.recv(MAX_ANSWER)
            if not chunk:
                break
            answer += chunk
    return answer
