"""The web config file: TLS, response headers and basic auth, in the format that Prometheus exporters share.

    tls_server_config: {cert_file, key_file, client_auth_type, client_ca_file, min_version, max_version}
    http_server_config: {headers: {Strict-Transport-Security: …}}
    basic_auth_users: {alice: $2y$10$…}

A key of that format that this server does not support is an error: half a security setting is worse than none.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from ..config import reader
from ..config.schema import about
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
    """The server's certificate, and whether clients must present one."""

    cert_file: Annotated[Path, about("Certificate with its chain (PEM). A changed file is read again.")]
    key_file: Annotated[Path, about("Private key (PEM), without a passphrase.")]
    client_auth_type: Annotated[
        Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"],
        about("Whether the server ignores, verifies or requires certificates of clients."),
    ] = "NoClientCert"
    client_ca_file: Annotated[Path | None, about("CA of the clients' certificates.")] = None
    min_version: Annotated[Literal["TLS12", "TLS13"], about("Lowest TLS version.")] = "TLS12"
    max_version: Annotated[Literal["TLS12", "TLS13"], about("Highest TLS version.")] = "TLS13"

    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        "cipher_suites": "remove it; to narrow OpenSSL's defaults, set min_version: TLS13",
        "curve_preferences": "remove it; OpenSSL's defaults apply",
        "prefer_server_cipher_suites": "remove it; it does not matter for current cipher suites",
        "client_allowed_sans": "remove it, and use a client_ca_file whose CA signs only for these clients",
        "cert": "write it to a file and set cert_file",
        "key": "write it to a file and set key_file",
        "client_ca": "write it to a file and set client_ca_file",
    }

    def __post_init__(self) -> None:
        if self.min_version > self.max_version:
            raise UsageError("tls_server_config.min_version is above max_version: no client could connect")
        verifies = self.client_auth_type != "NoClientCert"
        if verifies and self.client_ca_file is None:
            raise UsageError(f"tls_server_config.client_ca_file is missing: {self.client_auth_type} needs it")
        if self.client_ca_file and not verifies:
            raise UsageError("tls_server_config.client_auth_type is missing: client_ca_file has no effect without it")

    @property
    def mutual(self) -> bool:
        """Whether a client must present a certificate."""
        return self.client_auth_type == "RequireAndVerifyClientCert"


@dataclass(frozen=True)
class HttpServerConfig:
    """The protocol, and headers of responses."""

    http2: Annotated[bool, about("No effect: the server speaks HTTP/1.1.")] = True
    headers: Annotated[Mapping[str, str], about("Security headers that every response contains.")] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        reader.check_keys(self.headers, _HEADERS, "http_server_config.headers")
        for name, value in self.headers.items():
            if not value.isascii() or not value.isprintable():
                raise UsageError(f"http_server_config.headers.{name} contains an unprintable character")


@dataclass(frozen=True)
class WebConfig:
    """TLS, headers and users. An empty file is plain HTTP without authentication."""

    tls_server_config: TlsServerConfig | None = None
    http_server_config: HttpServerConfig = HttpServerConfig()
    basic_auth_users: Annotated[
        Mapping[str, str], about("The bcrypt hash of each user's password, by user name.", secret=True)
    ] = field(default_factory=dict, repr=False)

    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        "rate_limit": "remove it; web.max_requests and web.max_connections of the --config file bound what one can ask"
    }

    def __post_init__(self) -> None:
        for user, hashed in self.basic_auth_users.items():
            if ":" in user or not user:
                raise UsageError(f"basic_auth_users: {user!r:.40} is not a user name: it is empty or contains a colon")
            if not _BCRYPT.fullmatch(hashed):  # the message does not quote it: it may be a password
                raise UsageError(f"basic_auth_users.{user} is not a bcrypt hash; make one: htpasswd -nBC 10 {user}")

    @property
    def files(self) -> tuple[Path, ...]:
        """The certificate, key and CA files."""
        tls = self.tls_server_config
        return () if tls is None else tuple(p for p in (tls.cert_file, tls.key_file, tls.client_ca_file) if p)

    @property
    def authenticates(self) -> bool:
        return not {"client certificates", "basic auth"}.isdisjoint(self.protections)

    @property
    def protections(self) -> tuple[str, ...]:
        """What protects the server, for messages."""
        tls = self.tls_server_config
        present = {
            "TLS": tls is not None,
            "client certificates": tls is not None and tls.mutual,
            "basic auth": bool(self.basic_auth_users),
        }
        return tuple(name for name, is_present in present.items() if is_present)


def load(path: Path) -> WebConfig:
    """Raises Unavailable, BadInput or UsageError, whose text holds no secret."""
    return reader.load(WebConfig, path)


Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class WebFiles:
    """A web config file with everything it names, read together. Without a path: a server without such a file."""

    path: Path | None
    web: WebConfig
    context: ssl.SSLContext | None
    stamps: Mapping[Path, Stamp | None]

    def changed(self) -> bool:
        """Return whether a file was written or replaced: certificates are renewed by a rename, without a signal."""
        return any(_stamp(path) != stamp for path, stamp in self.stamps.items())

    def restamped(self) -> WebFiles:
        """Return the same with the files' present stamps, so that a bad change is reported once."""
        return replace(self, stamps={path: _stamp(path) for path in self.stamps})


def read_files(path: Path | None) -> WebFiles:
    """Raises Unavailable, BadInput or UsageError."""
    if path is None:
        return WebFiles(None, WebConfig(), None, {})
    stamps = {path: _stamp(path)}  # before reading: a change in between is noticed later
    web = load(path)
    stamps |= {file: _stamp(file) for file in web.files}
    return WebFiles(path, web, tls_context(web), stamps)


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def tls_context(config: WebConfig) -> ssl.SSLContext | None:
    """Return the TLS settings of the listener, None for plain HTTP. Raises Unavailable or BadInput."""
    tls = config.tls_server_config
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    context.verify_mode = _CLIENT_AUTH[tls.client_auth_type]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    for path in config.files:  # OpenSSL's error does not name the file
        try:
            path.open("rb").close()
        except OSError as error:
            raise Unavailable(f"cannot read {path} (in tls_server_config): {error.strerror}") from None
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_refuse_passphrase)
    except (ssl.SSLError, UsageError) as error:
        reason = _reason(error)
        raise BadInput(f"{tls.cert_file} and {tls.key_file} are not a certificate and its key ({reason})") from None
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(tls.client_ca_file)
        except ssl.SSLError as error:
            raise BadInput(f"{tls.client_ca_file} contains no CA certificate ({_reason(error)})") from None
    return context


def _refuse_passphrase() -> str:
    """Without this, OpenSSL asks on the terminal."""
    raise UsageError("the key has a passphrase")


def _reason(error: Exception) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else str(error)) or "unreadable"
