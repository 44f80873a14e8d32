"""What a check is, what it can find, and how its outcome is shown."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..errors import GpufragError, one_line
from ..reports.terminal import Emphasis

Context = TypeVar("Context", contravariant=True)
log = logging.getLogger(__name__)
SHOWN = 5


@dataclass(frozen=True)
class Ok:
    text: str


@dataclass(frozen=True)
class Warn:
    """It works, or may work; `text` says what, where, and what to do."""

    text: str


@dataclass(frozen=True)
class Fail:
    """Something that is needed does not work; `text` like Warn."""

    text: str


@dataclass(frozen=True)
class Unknown:
    """The check could not look; `text` says why."""

    text: str


Result = Ok | Warn | Fail | Unknown


@dataclass(frozen=True)
class Check(Generic[Context]):
    """One row of a table. If a `gate` does not return Ok, the checks after it are not run."""

    name: str
    looks_at: str
    run: Callable[[Context], Result]
    gate: bool = False


@dataclass(frozen=True)
class Outcome:
    subject: str
    """host, cluster, prometheus or manifests."""
    check: str
    looks_at: str
    result: Result

    @property
    def word(self) -> str:
        return type(self.result).__name__.lower()

    def line(self, bold: Emphasis) -> str:
        word = f"{self.word:>7}" if self.word == "ok" else bold(f"{self.word.upper():>7}")
        text = "\n".join(map(one_line, self.result.text.split("\n")))  # names of others may control a terminal
        return f"{word}  {self.subject} {self.check}: {text}"

    def as_record(self) -> dict[str, Any]:
        """Return the form of --json; its names are stable."""
        return {
            "subject": self.subject,
            "check": self.check,
            "looks_at": self.looks_at,
            "result": self.word,
            "text": self.result.text,
        }


def examine(subject: str, checks: Iterable[Check[Context]], context: Context) -> Iterator[Outcome]:
    """Run the checks in order. A check that raises does not stop the others, unless it is a gate."""
    for check in checks:
        result = _run(check, context)
        yield Outcome(subject, check.name, check.looks_at, result)
        if check.gate and not isinstance(result, Ok):
            return


def failed(outcomes: Iterable[Outcome]) -> bool:
    return any(isinstance(outcome.result, (Fail, Unknown)) for outcome in outcomes)


def _run(check: Check[Context], context: Context) -> Result:
    try:
        return check.run(context)
    except GpufragError as error:
        return Fail(str(error))
    except OSError as error:
        return Fail(f"{error.filename or 'system'}: {error.strerror or error}")
    except Exception as error:
        log.debug("check %s", check.name, exc_info=True)
        return Fail(f"bug in gpufrag ({type(error).__name__}: {error}); please report it")


def some(names: Iterable[object]) -> str:
    """Return the first few names, sorted, for a line."""
    listed = sorted(map(str, names))
    return ", ".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else "")
