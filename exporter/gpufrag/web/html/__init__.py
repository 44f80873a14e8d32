"""The pages of gpufrag's servers: one style, nothing loaded from elsewhere, foreign text escaped."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import NamedTuple

STYLE = (Path(__file__).parent / "style.css").read_text()


def page_headers(script: str = "") -> Mapping[str, str]:
    """Return the headers of a page; its policy allows STYLE and this inline script, which may fetch from its server."""
    run = f"script-src '{_source(script)}'; connect-src 'self'; " if script else ""
    return {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": f"default-src 'none'; style-src '{_source(STYLE)}'; {run}"
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
    }


def _source(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


HEADERS = page_headers()


class Column(NamedTuple):
    name: str
    css: str = ""


class Cell(NamedTuple):
    """`markup` is HTML of ours, shown after the text."""

    text: str
    css: str = ""
    title: str = ""
    markup: str = ""
    link: str = ""


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], empty: str) -> str:
    """Return a table, or the text `empty` without rows. On a narrow screen each row becomes a block of its own."""
    body = "".join(f"<tr>{''.join(map(_cell, columns, row))}</tr>\n" for row in rows)
    if not body:
        return f'<p class="empty">{html.escape(empty)}</p>\n'
    head = "".join(f'<th scope="col"{_css(column.css)}>{html.escape(column.name)}</th>' for column in columns)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"


def _cell(column: Column, cell: Cell) -> str:
    text = html.escape(cell.text)
    if cell.link:
        text = f'<a href="{html.escape(cell.link)}">{text}</a>'
    title = f' title="{html.escape(cell.title)}"' if cell.title else ""
    css = _css(f"{column.css} {cell.css}".strip())
    return f'<td data-label="{html.escape(column.name)}"{css}{title}>{text}{cell.markup}</td>'


def _css(names: str) -> str:
    return f' class="{names}"' if names else ""


@cache
def template(path: Path) -> Template:
    return Template(path.read_text())


def filled(path: Path, rows: Iterable[Mapping[str, str]]) -> str:
    """Return the template at `path` once for each row, with the row's values escaped."""
    one = template(path)
    return "".join(one.substitute({key: html.escape(value) for key, value in row.items()}) for row in rows)
