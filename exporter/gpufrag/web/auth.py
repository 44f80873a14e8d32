"""Basic auth for an ASGI app, against bcrypt hashes.

bcrypt is slow by design (100 ms and more): it runs in a thread, and what it said of a user and password is
remembered by a keyed digest, so that a scraper pays once. Passwords are held nowhere.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .worker import Worker

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from .bearer import TokenFile

_REMEMBERED = 256
_BCRYPT_BYTES = 72  # bcrypt looks no further; htpasswd and Go's exporters cut here too


class Passwords:
    """The users of one web config file. Replaced as a whole on reload, and with it all that was remembered."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = dict(users)
        self._worker = Worker("gpufrag-bcrypt")
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        """Apart from the right ones, so that a guesser cannot push those out."""

    def __bool__(self) -> bool:
        return bool(self._users)

    async def admit(self, user: str, password: bytes) -> bool:
        """Whether the password is the user's."""
        digest = hmac.digest(self._key, len(user).to_bytes(4, "big") + user.encode() + password, hashlib.sha256)
        if digest in self._right or digest in self._wrong:
            return digest in self._right
        right = await self._worker.run(lambda: self._check(user, password))
        _remember(self._right if right else self._wrong, digest)
        return right

    def _check(self, user: str, password: bytes) -> bool:
        """An unknown user is checked against another's hash, so that the time tells nobody who exists."""
        import bcrypt  # loaded only where there is a user

        hashed = self._users.get(user) or next(iter(self._users.values()))
        try:
            same = bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed.encode())
        except ValueError:  # e.g. a NUL in the password, which older bcrypt refuses
            return False
        return same and user in self._users


def _remember(digests: OrderedDict[bytes, None], digest: bytes) -> None:
    digests[digest] = None
    while len(digests) > _REMEMBERED:
        digests.popitem(last=False)


class BasicAuth:
    """Lets through who is in `passwords`, or has a token, and answers the rest with 401.

    All, when there are neither users nor tokens.

    `open_paths` need no password: health probes, which cannot send one and learn nothing but yes or no.
    """

    def __init__(
        self,
        app: ASGIApp,
        passwords: Passwords,
        open_paths: frozenset[str] = frozenset(),
        token: TokenFile | None = None,
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._token = token
        self.passwords = passwords

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = self.passwords or self._token
        if not guarded or scope["path"] in self._open_paths or await self._admits(scope):
            await self._app(scope, receive, send)
        else:
            await _refuse(send)

    async def _admits(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        if self._token is not None and self._token.admits(given[0]):
            return True
        credentials = _credentials(given[0]) if self.passwords else None
        return credentials is not None and await self.passwords.admit(*credentials)


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


async def _refuse(send: Send) -> None:
    headers = [
        (b"www-authenticate", b'Basic realm="gpufrag", charset="UTF-8"'),
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"13"),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": b"Unauthorized\n"})
