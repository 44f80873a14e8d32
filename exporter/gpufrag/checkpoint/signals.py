"""A checkpoint asked for by a signal: what a launcher or a scheduler sends to every rank of a host before it ends them.

Rank 0 of the host leads the agreement, over the sockets of its folder; the others wait to be asked. A checkpoint that
is under way already, as before a restart, is awaited first: who has saved in it ends, and saves no second time.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from ..agent.identity import identify
from ..errors import GpufragError, UsageError
from ..wire.folder import to_write
from ..wire.sample import Identity
from . import rank_sockets
from .agree import agree
from .participant import here
from .records import FAILED, SAVED, Ask, Heard, RankState, Terms, decode_rank, release

logger = logging.getLogger("gpufrag")
ASKED_WITHIN_S = 10.0
"""Another rank leads; where it does not ask for so long, it was not signalled."""
LOOK_S = 0.05
_OF_A_SIGNAL = re.compile(r"SIG[A-Z0-9]+-[0-9a-f]{8}")
"""Checkpoints that a rank leads: it tells all when to end."""


class OnSignal:
    """The program's own handler, or what the signal did before, comes where nothing can be saved."""

    def __init__(self, timeout: float, asked_within: float = ASKED_WITHIN_S) -> None:
        self._timeout, self._asked_within = timeout, asked_within
        self._earlier: dict[int, Any] = {}
        self._passed_on: set[int] = set()
        self._begun = False

    def install(self, numbers: Sequence[int]) -> None:
        """Raises UsageError outside the main thread, and for what is no signal that can be handled."""
        for number in numbers:
            try:
                self._earlier[number] = signal.signal(number, self._handle)
            except (ValueError, OSError) as error:
                raise UsageError(
                    f"signal {number}: {error}; call it in the main thread, with SIGTERM or such"
                ) from None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in self._passed_on:
            self._as_before(number, frame)
        elif not self._begun:  # a second one meanwhile changes nothing
            self._begun = True
            try:
                threading.Thread(target=self._save, args=(number,), name="gpufrag-signal", daemon=True).start()
            except RuntimeError as error:  # no more threads are to be had; an error here would be the program's
                self._begun = False
                self._pass_on(number, str(error))

    def _as_before(self, number: int, frame: FrameType | None) -> None:
        earlier = self._earlier[number]
        if callable(earlier):
            earlier(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)
            os.kill(os.getpid(), number)

    def _save(self, number: int) -> None:
        identity = identify()
        leads = identity.local_rank in (None, 0)
        self._follow(identity, 0.0 if leads else self._asked_within)
        reason = None if here().leaving else "rank 0 of this host has brought none to its end"
        if reason and leads:
            reason = self._lead(number, identity)
        self._begun = False
        if reason is not None:
            self._pass_on(number, reason)

    def _pass_on(self, number: int, reason: str) -> None:
        logger.warning("gpufrag: no checkpoint at %s: %s", signal.Signals(number).name, reason)
        self._passed_on.add(number)
        os.kill(os.getpid(), number)  # handlers run in the main thread

    def _lead(self, number: int, identity: Identity) -> str | None:
        """None where all have saved, and end now; else why not."""
        checkpoint = f"{signal.Signals(number).name}-{secrets.token_hex(4)}"
        try:
            ask = rank_sockets.in_folder(to_write()) if (identity.world_size or 1) > 1 else _alone(identity)
            saved = rank_sockets.lead(agree(Terms(checkpoint, self._timeout), time.monotonic), ask)
            if saved is None:
                return "nobody has called gpufrag.on_checkpoint"
            ask(release(checkpoint, end=True))
        except (GpufragError, OSError) as error:
            return str(error)
        return None

    def _follow(self, identity: Identity, patience: float) -> None:
        """Until this rank ends for it has saved, or no checkpoint has been under way for `patience` seconds."""
        begun = under_way = now = time.monotonic()
        while not here().leaving and now < begun + self._timeout + self._asked_within:
            state = here().state(identity)
            if _is_under_way(state):
                under_way = now
            elif now >= under_way + patience:
                return
            if state.state == SAVED and not _OF_A_SIGNAL.fullmatch(str(state.id)):
                here().command("release", {"id": state.id, "exit": True}, identity)
            time.sleep(LOOK_S)
            now = time.monotonic()


def _is_under_way(state: RankState) -> bool:
    return state.id is not None and state.state != FAILED


def _alone(identity: Identity) -> Callable[[Ask], Heard]:
    """The only rank needs no socket, and so no agent."""

    def ask(wanted: Ask) -> Heard:
        try:
            return Heard((decode_rank(here().command(wanted.command, wanted.fields, identity)),))
        except GpufragError as error:
            return Heard(silent=(str(error),))

    return ask
