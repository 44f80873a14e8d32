"""What goes wrong inside the agent: counted by source, logged once with its remedy, and never the trainer's problem."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress

REFUSES_THREADS = "interpreter shutdown"
"""In the words of Python 3.12 and newer. No fault, and nothing to do about it: the program has ended."""
logger = logging.getLogger("gpufrag")


class ErrorCounter:
    """Counts since the process began. May be used from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, source: str, error: BaseException | str, remedy: str) -> None:
        """Count a failure of `source`; the first one of each is logged."""
        self._counts[source] += 1
        if self._counts[source] == 1:
            what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            text = "gpufrag %s: %s; %s (training goes on; further ones are only counted)"
            if REFUSES_THREADS in what:
                return
            with suppress(Exception):  # the program's own log handlers run below, and we may stand in its step
                logger.warning(text, source, what, remedy)

    @property
    def counts(self) -> dict[str, int]:
        return dict(sorted(self._counts.items()))
