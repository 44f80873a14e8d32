"""A web config file and all that it names, read together, so that TLS and users are of one moment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import config
from .config import WebConfig

if TYPE_CHECKING:
    import ssl

Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class WebFiles:
    """What `read` found. `path` None is a server without a web config file."""

    path: Path | None
    web: WebConfig
    context: ssl.SSLContext | None
    stamps: dict[Path, Stamp | None]

    def changed(self) -> bool:
        """Whether a file was written or replaced since: a certificate is renewed by a rename and without a signal."""
        return any(_stamp(path) != stamp for path, stamp in self.stamps.items())


def read(path: Path | None) -> WebFiles:
    """Raises Unavailable, BadInput or UsageError, each of which names the file."""
    if path is None:
        return WebFiles(None, WebConfig(), None, {})
    stamps = {path: _stamp(path)}  # before it is read: a change meanwhile is seen as one later
    web = config.load(path)
    stamps |= {file: _stamp(file) for file in web.files}
    return WebFiles(path, web, config.tls_context(web), stamps)


def restamp(files: WebFiles) -> WebFiles:
    """The same, as of the files' present state: a bad change is reported once, not again at each look."""
    return WebFiles(files.path, files.web, files.context, {path: _stamp(path) for path in files.stamps})


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:  # gone is a state like any other
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
