"""Counts the agent's own errors by source and logs the first of each with its remedy."""

from __future__ import annotations

import logging
from collections import Counter

from .interrupts import call_confined, let_through

REFUSES_THREADS = "interpreter shutdown"
"""Part of Python's message (3.12 and newer) for a thread that cannot start because the program is ending: no fault."""
logger = logging.getLogger("gpufrag")


class ErrorCounter:
    """Counts since the process started. Safe from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, source: str, error: BaseException | str, remedy: str) -> None:
        """Count an error of `source`, and log the first one. Raises what a signal handler of the program raised."""
        if isinstance(error, BaseException):
            let_through(error)
        self._counts[source] += 1
        if self._counts[source] == 1:
            what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            text = "gpufrag %s: %s; %s (training continues; further errors are only counted)"
            if REFUSES_THREADS not in what:
                call_confined(logger.warning, text, source, what, remedy)

    @property
    def counts(self) -> dict[str, int]:
        return dict(sorted(self._counts.items()))
