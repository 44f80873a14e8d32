"""A checkpoint on a signal: what a launcher or scheduler sends to every rank of a host before it ends them.

Rank 0 of the host coordinates over the sockets of its folder; the other ranks wait for its commands. A checkpoint that
is already in progress, for example before a restart, comes first: a rank that has saved in it ends and does not save
again.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from ..agent.identity import identify
from ..errors import GpufragError, UsageError
from ..wire.folder import to_write
from ..wire.interrupts import call_confined
from ..wire.sample import Identity
from ..wire.threads import start_thread
from .coordinator import AskRanks, Coordinator, ranks_in
from .participant import this_process
from .protocol import FAILED, SAVED, Answers, RankCommand, Terms

logger = logging.getLogger("gpufrag")
COMMAND_WITHIN_S = 10.0
"""If rank 0 sends no command within this time, it did not receive the signal."""
LOOK_S = 0.05
_SIGNAL_ID = re.compile(r"SIG[A-Z0-9]+-[0-9a-f]{8}")
"""The id of a checkpoint that rank 0 coordinates; rank 0 releases the others itself."""


class SignalCheckpoint:
    """If nothing can be saved, the program's own handler runs, or the signal's default action."""

    def __init__(self, timeout: float, command_within_s: float = COMMAND_WITHIN_S) -> None:
        self._timeout, self._command_within_s = timeout, command_within_s
        self._previous: dict[int, Any] = {}
        self._passed_on: set[int] = set()
        self._running = False

    def install(self, numbers: Sequence[int]) -> None:
        """Raises UsageError outside the main thread, and for a signal that has no handler."""
        for number in numbers:
            try:
                self._previous[number] = signal.signal(number, self._handle)
            except (ValueError, OSError) as error:
                raise UsageError(
                    f"cannot handle signal {number}: {error}; call checkpoint_on_signal in the main thread, "
                    "with SIGTERM or another signal that can be handled"
                ) from None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in self._passed_on:
            previous = self._previous[number]
            if callable(previous):
                previous(number, frame)
            else:
                signal.signal(number, signal.SIG_DFL if previous is None else previous)
                os.kill(os.getpid(), number)
        elif not self._running:  # a second signal changes nothing
            self._running = True
            try:
                start_thread(self._save, "gpufrag-signal", number)
            except RuntimeError as error:  # the system has no thread; an exception would reach the program
                self._running = False
                self._pass_on(number, str(error))

    def _save(self, number: int) -> None:
        """Whatever fails here, the signal must not be lost."""
        try:
            failure = self._checkpoint(number)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        self._running = False
        if failure is not None:
            self._pass_on(number, failure)

    def _checkpoint(self, number: int) -> str | None:
        """Return None if this rank has saved and ends now, else the reason."""
        identity = identify()
        coordinates = identity.local_rank in (None, 0)
        self._follow(identity, 0.0 if coordinates else self._command_within_s)
        failure = None if this_process().leaving else "rank 0 of this host completed none"
        if failure and coordinates:
            failure = self._coordinate(number, identity)
        return failure

    def _pass_on(self, number: int, reason: str) -> None:
        call_confined(logger.warning, "gpufrag: no checkpoint on %s: %s", signal.Signals(number).name, reason)
        self._passed_on.add(number)
        os.kill(os.getpid(), number)  # handlers run in the main thread

    def _coordinate(self, number: int, identity: Identity) -> str | None:
        """Return None if all ranks have saved and end now, else the reason."""
        terms = Terms(f"{signal.Signals(number).name}-{secrets.token_hex(4)}", self._timeout)
        try:
            alone = (identity.world_size or 1) == 1
            coordinator = Coordinator(_only_rank(identity) if alone else ranks_in(to_write()), terms)
            if coordinator.save() is None:
                return "the program has not called gpufrag.on_checkpoint"
            with this_process().staying():
                coordinator.release(end=True)
        except (GpufragError, OSError) as error:
            return str(error)
        return None

    def _follow(self, identity: Identity, patience: float) -> None:
        """Return when this rank is about to end, or when no checkpoint was in progress for `patience` seconds."""
        started = last_seen = now = time.monotonic()
        while not this_process().leaving and now < started + self._timeout + self._command_within_s:
            state = this_process().state(identity)
            if state.id is not None and state.state != FAILED:
                last_seen = now
            elif now >= last_seen + patience:
                return
            if state.state == SAVED and not _SIGNAL_ID.fullmatch(str(state.id)):
                this_process().command("release", {"id": state.id, "exit": True}, identity)
            time.sleep(LOOK_S)
            now = time.monotonic()


def _only_rank(identity: Identity) -> AskRanks:
    """Ask this process without its socket, so it needs no agent."""

    def ask(command: RankCommand) -> Answers:
        try:
            this_process().command(command.name, command.fields, identity)
            return Answers((this_process().state(identity),))
        except GpufragError as error:
            return Answers(silent=(str(error),))

    return ask
