"""Every error that gpufrag raises on purpose.

    GpufragError            exit code 1: something failed; the text says what, why and what to do
    ├── UsageError          exit code 2: a wrong flag, key or value
    ├── BadInput            a damaged or foreign file, snapshot, recording or sample
    │   └── NewerVersion    written by a newer gpufrag: skipped and counted
    └── Unavailable         a driver, folder, port or process is missing now

Only cli.py turns these into exit codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class GpufragError(Exception):
    """Base class. Each argument is one line that a user can act on; usually there is one."""

    exit_code = 1

    def __str__(self) -> str:
        return "\n".join(one_line(str(line)) for line in self.args)


class UsageError(GpufragError):
    """An unknown flag or key, or a value out of range."""

    exit_code = 2


class BadInput(GpufragError):
    """Input that is damaged or has another form."""


class NewerVersion(BadInput):
    """Input that a newer gpufrag wrote."""


class Unavailable(GpufragError):
    """Something outside this process is missing, busy or refuses."""


@contextmanager
def unreadable_is_unavailable(name: str, file: str, how: str) -> Iterator[None]:
    """Raise Unavailable for an error of reading the file `name` that a user named; `file` is what belongs there."""
    try:
        yield
    except IsADirectoryError:
        raise Unavailable(f"{name}: is a directory; name the {file} file in it") from None
    except FileNotFoundError:
        raise Unavailable(f"{name}: no such file; {how}") from None
    except PermissionError:
        raise Unavailable(f"{name}: permission denied; make the file readable (chmod, or copy it)") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte in it
        raise Unavailable(f"{name!r}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def one_line(text: str) -> str:
    """Escape characters that break a line, control a terminal or are invisible; file names may have them."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
