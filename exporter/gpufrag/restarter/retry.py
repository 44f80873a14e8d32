"""Calls to a backend, repeated until they succeed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from itertools import accumulate, repeat
from typing import TypeVar

from ..logs import event
from .backend import BackendError, NotFound
from .clock import Clock

FIRST_DELAY_S, MAX_DELAY_S = 0.5, 60.0
REPORTED_TRIES = 5
"""Failures in a row that are reported."""
T = TypeVar("T")
log = logging.getLogger(__name__)


def delays() -> Iterator[float]:
    """Yield the seconds to wait after each failure in a row: doubled, up to a minute, without end."""
    return accumulate(repeat(FIRST_DELAY_S), lambda delay, _: min(delay * 2, MAX_DELAY_S))


def retry_until(
    call: Callable[[], T], clock: Clock, until_s: float, report: Callable[[BackendError], None] | None = None
) -> Generator[float, None, T]:
    """Call until it succeeds. `call` must read the job each time, because a failed call may have been carried out.

    Raises NotFound at once, and any other error of `call` from `until_s` on, by the steady clock. If calls keep
    failing, calls `report` once.
    """
    for tries, delay in enumerate(delays(), 1):
        try:
            return call()
        except NotFound:
            raise
        except BackendError as error:
            left = until_s - clock.steady()
            if left <= 0:
                raise
            if tries == REPORTED_TRIES:
                event(log, logging.WARNING, "a request of a restart keeps failing", tries=tries, reason=error)
                if report is not None:
                    report(error)
            yield min(max(delay, error.retry_after_s or 0.0), left)
    raise AssertionError("delays have no end")
