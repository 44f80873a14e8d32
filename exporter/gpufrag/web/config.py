"""The web config file: TLS, response headers and basic auth, in the form that Prometheus exporters share.

    tls_server_config: {cert_file, key_file, client_auth_type, client_ca_file, min_version, max_version}
    http_server_config: {headers: {Strict-Transport-Security: …}}
    basic_auth_users: {alice: $2y$10$…}

A key of that form that is not served here is an error and says what to do instead: half a security setting is
worse than none.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ..config import yaml_record
from ..errors import BadInput, Unavailable, UsageError

_BCRYPT = re.compile(r"\$2[abxy]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_HEADERS = (
    "Content-Security-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
)


@dataclass(frozen=True)
class TlsServerConfig:
    """The server's certificate, and whether clients must show one. Paths count from the web config file."""

    cert_file: Path
    """The certificate, PEM, its chain below it. Read again when it changes."""
    key_file: Path
    """Its private key, PEM, without a passphrase."""
    client_auth_type: str = "NoClientCert"
    """NoClientCert, VerifyClientCertIfGiven or RequireAndVerifyClientCert."""
    client_ca_file: Path | None = None
    """The authorities that clients' certificates must come from."""
    min_version: str = "TLS12"
    """TLS12 or TLS13; older ones are not offered."""
    max_version: str = "TLS13"
    """TLS12 or TLS13."""

    UNSERVED: ClassVar[Mapping[str, str]] = {
        "cipher_suites": "OpenSSL's own choice is offered; remove it, and narrow that with min_version: TLS13",
        "curve_preferences": "OpenSSL's own choice is offered; remove it",
        "prefer_server_cipher_suites": "remove it; among the suites of today the order is no matter of security",
        "client_allowed_sans": "remove it, and let client_ca_file hold an authority that signs for these clients only",
        "cert": "write it to a file and name that in cert_file",
        "key": "write it to a file and name that in key_file",
        "client_ca": "write it to a file and name that in client_ca_file",
    }

    def __post_init__(self) -> None:
        _one_of(self.client_auth_type, _CLIENT_AUTH, "client_auth_type")
        _one_of(self.min_version, _VERSIONS, "min_version")
        _one_of(self.max_version, _VERSIONS, "max_version")
        if self.min_version > self.max_version:
            raise UsageError("tls_server_config.min_version is above max_version: no client could connect")
        verifies = self.client_auth_type != "NoClientCert"
        if verifies and self.client_ca_file is None:
            raise UsageError(f"tls_server_config.client_ca_file is missing: {self.client_auth_type} needs it")
        if self.client_ca_file and not verifies:
            raise UsageError("tls_server_config.client_auth_type is missing: client_ca_file alone verifies nobody")

    @property
    def mutual(self) -> bool:
        """Whether a client must show a certificate."""
        return self.client_auth_type == "RequireAndVerifyClientCert"


@dataclass(frozen=True)
class HttpServerConfig:
    """How HTTP is served."""

    http2: bool = True
    """Accepted for the sake of shared files; HTTP/1.1 is what is served."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every answer; the security headers that exporters share."""

    def __post_init__(self) -> None:
        yaml_record.check_keys(self.headers, _HEADERS, "http_server_config.headers")
        for name, value in self.headers.items():
            if not value.isascii() or not value.isprintable():
                raise UsageError(f"http_server_config.headers.{name} holds a line break or another unprintable letter")


@dataclass(frozen=True)
class WebConfig:
    """A whole web config file. The empty one is plain HTTP, open to all who can connect."""

    tls_server_config: TlsServerConfig | None = None
    http_server_config: HttpServerConfig = HttpServerConfig()
    basic_auth_users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """User name to bcrypt hash."""

    UNSERVED: ClassVar[Mapping[str, str]] = {
        "rate_limit": "remove it; web.max_requests and web.max_connections of the --config file bound what one can ask",
    }

    def __post_init__(self) -> None:
        for user, hashed in self.basic_auth_users.items():
            if ":" in user or not user:
                raise UsageError(f"basic_auth_users: {user!r:.40} cannot be a user name: it is empty or holds a colon")
            if not _BCRYPT.fullmatch(hashed):  # the value is not told: it may be a password
                raise UsageError(f"basic_auth_users.{user} is not a bcrypt hash; make one: htpasswd -nBC 10 {user}")

    @property
    def files(self) -> tuple[Path, ...]:
        """What else the server reads: when one changes, TLS is set up anew."""
        tls = self.tls_server_config
        return () if tls is None else tuple(p for p in (tls.cert_file, tls.key_file, tls.client_ca_file) if p)

    @property
    def authenticates(self) -> bool:
        """Whether a stranger who can connect is turned away."""
        return not {"client certificates", "basic auth"}.isdisjoint(self.protections)

    @property
    def protections(self) -> tuple[str, ...]:
        """What stands between a stranger and the figures."""
        tls = self.tls_server_config
        there = {
            "TLS": tls is not None,
            "client certificates": tls is not None and tls.mutual,
            "basic auth": bool(self.basic_auth_users),
        }
        return tuple(name for name, is_there in there.items() if is_there)


def load(path: Path) -> WebConfig:
    """Raises Unavailable, BadInput or UsageError, each of which names the file and no secret."""
    return yaml_record.load(WebConfig, path)


def tls_context(config: WebConfig) -> ssl.SSLContext | None:
    """What the listener is to speak; None is plain HTTP. Raises Unavailable or BadInput that names the file."""
    tls = config.tls_server_config
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    context.verify_mode = _CLIENT_AUTH[tls.client_auth_type]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    _check_readable(config.files)
    _load_certificate(context, tls)
    return context


def _load_certificate(context: ssl.SSLContext, tls: TlsServerConfig) -> None:
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_passphrase)
    except (ssl.SSLError, UsageError) as error:
        raise BadInput(f"{tls.cert_file} and {tls.key_file} are no certificate and its key ({_told(error)})") from None
    if tls.client_ca_file is None:
        return
    try:
        context.load_verify_locations(tls.client_ca_file)
    except ssl.SSLError as error:
        raise BadInput(f"{tls.client_ca_file} holds no certificate of an authority ({_told(error)})") from None


def _no_passphrase() -> str:
    raise UsageError("the key has a passphrase: nobody is here to type it")  # else OpenSSL asks on the terminal


def _told(error: Exception) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else str(error)) or "unreadable"


def _check_readable(files: tuple[Path, ...]) -> None:
    """OpenSSL's own error does not say which of the files it is about."""
    for path in files:
        try:
            path.open("rb").close()
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}; tls_server_config names it") from None


def _one_of(value: str, known: Mapping[str, object], key: str) -> None:
    if value not in known:
        raise UsageError(f"tls_server_config.{key} is {value!r:.40}: one of {', '.join(known)} belongs here")
