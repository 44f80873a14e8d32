"""Bearer tokens from a file, for callers that are programs. One token a line, so that two are good while one replaces
the other."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

from ..errors import BadInput, Unavailable
from ..logs import event

MAX_BYTES = 64 << 10
MIN_CHARACTERS = 16
log = logging.getLogger(__name__)


class TokenFile:
    """Read anew for each request: a token is replaced, or taken away, without a restart."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self) -> None:
        """Raises Unavailable or BadInput for a file that admits nobody."""
        self._tokens()

    def admits(self, header: bytes) -> bool:
        """Whether an Authorization header holds one of the tokens; nobody is let in by a file that cannot be read."""
        scheme, _, given = header.partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        try:
            tokens = self._tokens()
        except (Unavailable, BadInput) as error:
            event(log, logging.ERROR, "nobody is let in by a token", reason=error)
            return False
        return any([hmac.compare_digest(token, given.strip()) for token in tokens])  # all of them, in constant time

    def _tokens(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                text = file.read(MAX_BYTES)
        except OSError as error:
            raise Unavailable(f"{self._path}: {error.strerror}; it is to hold the bearer tokens, one a line") from None
        tokens = text.split()
        if not tokens or min(map(len, tokens)) < MIN_CHARACTERS:
            least = f"a token of at least {MIN_CHARACTERS} characters"
            raise BadInput(f"{self._path}: {least} belongs on each line: openssl rand -hex 32")
        return tokens
