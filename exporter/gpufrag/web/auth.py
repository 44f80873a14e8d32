"""Authentication of HTTP requests: passwords against bcrypt hashes, and bearer tokens from a file.

bcrypt takes 100 ms and more by design, so it runs in a thread, and a keyed digest of each checked password is kept:
a scraper pays once. Passwords are not kept.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput, Unavailable
from ..logs import event
from .asgi import answer, client_group
from .executor import SerialExecutor

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_TOKEN_FILE = 64 << 10
MIN_TOKEN = 16
BCRYPT_BYTES = 72  # bcrypt ignores the rest, like htpasswd and Go's exporters
REMEMBERED = 256
MAX_PENDING = 16
MAX_ADDRESSES = 1024
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
LOGGED_AFTER = 10
log = logging.getLogger(__name__)


class TokenFile:
    """Bearer tokens, one per line. Read again for each request, so a token can be replaced without a restart."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self) -> None:
        """Raise Unavailable or BadInput for a file without usable tokens."""
        self._tokens()

    def admits(self, header: bytes) -> bool:
        scheme, _, given = header.partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        try:
            tokens = self._tokens()
        except (Unavailable, BadInput) as error:
            event(log, logging.ERROR, "cannot read the token file; refusing every request", reason=error)
            return False
        return any([hmac.compare_digest(token, given.strip()) for token in tokens])  # compares all: constant time

    def _tokens(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                tokens = file.read(MAX_TOKEN_FILE).split()
        except OSError as error:
            raise Unavailable(f"cannot read token file {self._path}: {error.strerror}") from None
        if not tokens or min(map(len, tokens)) < MIN_TOKEN:
            need = f"each line must be a token of at least {MIN_TOKEN} characters"
            raise BadInput(f"cannot use token file {self._path}: {need}; create one with openssl rand -hex 32")
        return tokens


@dataclass
class _Guesser:
    """An address that sent a wrong password, or whose password is being checked."""

    wrong: int = 0
    free_at: float = 0.0
    pending: bool = False


class Passwords:
    """The users of one web config file. A reload replaces it as a whole.

    Passwords that are not remembered are guesses: one at a time per address, with a pause after each wrong one. So
    neither bcrypt's thread nor a request slot can be filled by them.
    """

    def __init__(self, users: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._users, self._clock = dict(users), clock
        self._executor = SerialExecutor("gpufrag-bcrypt")
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()  # apart, so that guesses do not push out right ones
        self._guessers: OrderedDict[str, _Guesser] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._users)

    async def admit(self, user: str, password: bytes, address: str) -> bool | float:
        """Return whether the password is the user's, or the seconds after which the address may try again."""
        digest = hmac.digest(self._key, len(user).to_bytes(4, "big") + user.encode() + password, hashlib.sha256)
        if digest in self._right or digest in self._wrong:
            return digest in self._right
        guesser = self._guessers.setdefault(address, _Guesser())
        wait = guesser.free_at - self._clock()
        if guesser.pending or wait > 0:
            return max(wait, FIRST_PAUSE_S)
        if sum(one.pending for one in self._guessers.values()) >= MAX_PENDING:
            return FIRST_PAUSE_S
        guesser.pending = True
        try:
            right = await self._executor.run(lambda: self._check(user, password))
        finally:
            guesser.pending = False
        remembered = self._right if right else self._wrong
        remembered[digest] = None
        while len(remembered) > REMEMBERED:
            remembered.popitem(last=False)
        self._note(address, guesser, right)
        return right

    def _note(self, address: str, guesser: _Guesser, right: bool) -> None:
        if right:
            self._guessers.pop(address, None)
            return
        guesser.wrong += 1
        guesser.free_at = self._clock() + min(FIRST_PAUSE_S * 2.0 ** min(guesser.wrong - 1, 16), LONGEST_PAUSE_S)
        if guesser.wrong == LOGGED_AFTER:
            event(log, logging.WARNING, "repeated wrong passwords", address=address, count=guesser.wrong)
        self._guessers.move_to_end(address)
        while len(self._guessers) > MAX_ADDRESSES:
            self._guessers.popitem(last=False)

    def _check(self, user: str, password: bytes) -> bool:
        """An unknown user is checked against another's hash, so that the time does not show who exists."""
        import bcrypt  # loaded only if there are users

        hashed = self._users.get(user) or next(iter(self._users.values()))
        try:
            same = bcrypt.checkpw(password[:BCRYPT_BYTES], hashed.encode())
        except ValueError:  # older bcrypt refuses NUL in a password
            return False
        return same and user in self._users


class Authentication:
    """Passes on requests of users and token holders and answers others with 401.

    Without users and tokens it passes on everything. `open_paths` are health probes, which cannot authenticate.
    """

    def __init__(
        self,
        app: ASGIApp,
        passwords: Passwords,
        open_paths: frozenset[str] = frozenset(),
        token: TokenFile | None = None,
    ) -> None:
        self._app, self._open_paths, self._token = app, open_paths, token
        self.passwords = passwords

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in self._open_paths:
            admitted = await self._admits(scope) if self.passwords or self._token else True
            if admitted is False:
                challenge = (b"www-authenticate", b'Basic realm="gpufrag", charset="UTF-8"')
                await answer(send, 401, "Unauthorized", challenge)
                return
            if admitted is not True:
                retry = (b"retry-after", str(math.ceil(admitted)).encode())
                await answer(send, 429, "too many wrong passwords", retry)
                return
            scope.setdefault("state", {})["admitted"] = True
        await self._app(scope, receive, send)

    async def _admits(self, scope: Scope) -> bool | float:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        if self._token is not None and self._token.admits(given[0]):
            return True
        credentials = _credentials(given[0]) if self.passwords else None
        if credentials is None:
            return False
        return await self.passwords.admit(*credentials, client_group((scope.get("client") or ("",))[0]))


def _credentials(header: bytes) -> tuple[str, bytes] | None:
    """User and password of a Basic header; None for any other."""
    scheme, _, encoded = header.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError):
        return None
