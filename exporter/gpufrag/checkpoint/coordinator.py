"""Leads a checkpoint or a defragmentation: sends the commands of the protocol to all ranks and collects their answers.

The sidecar and rank 0 (on a signal) reach the ranks through the sockets of one folder, the restarter also through the
sidecars of several pods.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Container, Generator, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import GpufragError, Unavailable
from ..wire import codec
from ..wire.control_client import Answer, ControlError, NotListening, Rejected, ask_all
from ..wire.defragmentation import DefragmentOptions
from ..wire.folder import SOCKET_SUFFIX, FileName
from .protocol import CHECKPOINT, DEFRAGMENT, Action, Answers, RankCommand, RankState, Saved, Terms, agree

ANSWER_WITHIN_S = 3.0
MAX_ANSWER = 16 << 10
MAX_RANKS = 1000
LOOK_S = 0.1
"""Between two looks at whether all ranks have answered."""

DEFRAGMENT_PATIENCE_S = 10.0
"""A rank waits this long at its step for the others."""
LEAD_ALONE_S = 0.1
"""One process needs no time for the commands to reach the others."""

AskRanks = Callable[[RankCommand], Answers]
"""Sends a command to all ranks and blocks until they have answered. Raises GpufragError if it cannot."""


class Coordinator:
    """Leads what `terms` describes over `ask`. `clock` is monotonic."""

    def __init__(self, ask: AskRanks, terms: Terms, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._terms = ask, terms
        self._agreement = agree(terms, clock)

    def save(self) -> Saved | None:
        """Block until all ranks have saved; return None if no rank has a callback.

        Raises AgreementFailed, and what `ask` raises.
        """
        try:
            command = next(self._agreement)
            while True:
                time.sleep(command.delay_s)
                command = self._agreement.send(self._ask(command))
        except StopIteration as end:
            saved: Saved | None = end.value
            return saved

    def steps(self, threads: Executor) -> Generator[float, None, Saved | None]:
        """Like `save`, but yields the seconds after which to resume it, and asks the ranks in `threads`.

        An error of `ask` counts as the silence of all ranks.
        """
        try:
            command = next(self._agreement)
            while True:
                if command.delay_s:
                    yield command.delay_s
                future = threads.submit(self._ask, command)
                while not future.done():
                    yield LOOK_S
                try:
                    answers = future.result()
                except GpufragError as error:
                    answers = Answers(silent=(str(error),))
                command = self._agreement.send(answers)
        except StopIteration as end:
            saved: Saved | None = end.value
            return saved

    def release(self, *, end: bool) -> None:
        """Let ranks that have saved end with exit code 42, or continue to train. Raises what `ask` raises."""
        self._send("release", exit=end)

    def give_up(self) -> None:
        """Let the ranks continue to train, whatever their state is. Best effort."""
        with suppress(GpufragError):
            self._send("cancel")
            self.release(end=False)

    def _send(self, name: str, **fields: Any) -> None:
        self._ask(RankCommand(name, {"id": self._terms.id, **fields}, action=self._terms.action))


def defragmentation(options: DefragmentOptions, timeout: float, alone: bool = False) -> Terms:
    """Return the terms of a new defragmentation. An order lapses in the ranks only after the coordinator gave up."""
    return Terms(
        f"defragment-{secrets.token_hex(6)}",
        timeout,
        patience=min(DEFRAGMENT_PATIENCE_S, timeout),
        hold=2 * timeout,
        lead=LEAD_ALONE_S if alone else Terms.lead,
        action=DEFRAGMENT,
        options=replace(options, time_limit=timeout),
        alone=alone,
    )


def ranks_in(folder: Path, pids: Container[int] | None = None) -> AskRanks:
    """Reach the ranks whose sockets lie in `folder`, or only those among `pids`."""
    return lambda command: ask_folder(folder, command.name, command.fields, pids, command.action)


def ask_folder(
    folder: Path,
    name: str,
    fields: Mapping[str, Any],
    pids: Container[int] | None = None,
    action: Action = CHECKPOINT,
) -> Answers:
    """Send one command to the ranks in `folder`, or only to those among `pids`.

    Dead processes are left out, and with `pids`, sockets that other processes have bound under their names. Raises
    Unavailable if the folder cannot be read.
    """
    found = _sockets(folder, pids)
    sockets, expected = sorted(found), {} if pids is None else found
    outcomes = ask_all(sockets, {"command": action.prefix + name, **fields}, ANSWER_WITHIN_S, MAX_ANSWER, expected)
    answers = [_read(path, outcomes[path]) for path in sockets]
    return Answers(
        tuple(answer for answer in answers if isinstance(answer, RankState)),
        tuple(answer for answer in answers if isinstance(answer, str)),
    )


def _sockets(folder: Path, pids: Container[int] | None) -> dict[Path, int]:
    """The sockets of the ranks, each with the pid in its name."""
    found = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = FileName.parse(entry.name) if entry.name.endswith(SOCKET_SUFFIX) else None
                if name and (pids is None or name.pid in pids):
                    found[folder / entry.name] = name.pid
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Unavailable(f"cannot read {folder}: {error.strerror}; it must be the job's $GPUFRAG_DIR") from None
    if len(found) > MAX_RANKS:
        raise Unavailable(f"{folder} has {len(found)} sockets (limit {MAX_RANKS}): give each job its own folder")
    return found


def _read(path: Path, outcome: Answer | ControlError) -> RankState | str | None:
    """The rank's state, or why there is none; None for a dead process."""
    if isinstance(outcome, NotListening):
        return None
    if isinstance(outcome, Rejected):
        return f"{path.stem}: {outcome}"
    if isinstance(outcome, ControlError):
        return str(outcome)
    try:
        return RankState.from_json(outcome)
    except codec.Misfit as error:
        return f"{path.stem}: invalid answer ({error})"
