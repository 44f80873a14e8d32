"""What a check is, and what it can find."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..errors import GpufragError

Context = TypeVar("Context", contravariant=True)
log = logging.getLogger(__name__)
SHOWN = 5


@dataclass(frozen=True)
class Ok:
    text: str


@dataclass(frozen=True)
class Warn:
    """It works, or it may; `text` says what, where, and what to do."""

    text: str


@dataclass(frozen=True)
class Fail:
    """Something that is relied on does not work; `text` as of Warn."""

    text: str


Result = Ok | Warn | Fail


@dataclass(frozen=True)
class Check(Generic[Context]):
    """One row: `run` reads, changes nothing, and raises only what it has no better words for."""

    name: str
    looks_at: str
    run: Callable[[Context], Result]


@dataclass(frozen=True)
class Outcome:
    subject: str
    """host, cluster or prometheus."""
    check: str
    looks_at: str
    result: Result


def examine(subject: str, checks: Iterable[Check[Context]], context: Context) -> Iterator[Outcome]:
    """All of them: one that fails stops no other."""
    for check in checks:
        yield Outcome(subject, check.name, check.looks_at, _run(check, context))


def _run(check: Check[Context], context: Context) -> Result:
    try:
        return check.run(context)
    except GpufragError as error:
        return Fail(str(error))
    except OSError as error:
        return Fail(f"{error.filename or 'system'}: {error.strerror or error}")
    except Exception as error:  # told as what it is, so that the other checks are heard
        log.debug("check %s", check.name, exc_info=True)
        return Fail(f"a fault in gpufrag itself ({type(error).__name__}: {error}); report it")


def some(names: Iterable[object]) -> str:
    """The first few of them, sorted, for a line."""
    listed = sorted(map(str, names))
    return ", ".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else "")
