"""What the pages of gpufrag's servers share: one look, nothing fetched, and whatever comes from outside escaped."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from string import Template

STYLE = (Path(__file__).parent / "style.css").read_text()
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

HEADERS: Mapping[str, str] = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


@cache
def template(path: Path) -> Template:
    return Template(path.read_text())


def filled(path: Path, rows: Iterable[Mapping[str, str]]) -> str:
    """The template at `path` once for each row, with the row's values escaped."""
    one = template(path)
    return "".join(one.substitute({key: html.escape(value) for key, value in row.items()}) for row in rows)
