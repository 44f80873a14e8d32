"""Every error that gpufrag raises on purpose.

    GpufragError            exit code 1: something failed; the text says what, where and what to do
    ├── UsageError          exit code 2: a wrong flag, key or value; the caller must change the call
    ├── BadInput            a file, snapshot, trace or sample that cannot be what it claims to be
    │   └── NewerVersion    written by a newer gpufrag: skipped, counted, never guessed at
    └── Unavailable         something outside (driver, folder, port, process) is not there now

The command line is the only place that turns these into exit codes.
"""


class GpufragError(Exception):
    """Base of all. Each argument is a line that a user can act on; usually there is one."""

    exit_code = 1

    def __str__(self) -> str:
        return "\n".join(one_line(str(line)) for line in self.args)


class UsageError(GpufragError):
    """The call itself is wrong: an unknown flag or key, a value out of range."""

    exit_code = 2


class BadInput(GpufragError):
    """Input that is broken or is not of the form it claims."""


class NewerVersion(BadInput):
    """Input written by a newer version of gpufrag."""


class Unavailable(GpufragError):
    """A thing outside this process that is missing, busy or refuses."""


def one_line(text: str) -> str:
    """The same with what would break a line, steer a terminal or not be seen (a file's name may hold it) spelt out."""
    return text if text.isprintable() else "".join(map(_seen, text))


def _seen(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
