"""A parsed request, and its answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from restarter.fake_api import served
from restarter.fake_api.served import Served
from restarter.fake_api.status import ApiError, NoSuchPath


@dataclass(frozen=True)
class Request:
    """A request with the user of its token."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """Names in lower case."""
    content: bytes
    user: str = ""

    @property
    def dry_run(self) -> bool:
        return self.query.get("dryRun") == "All"

    @property
    def strict(self) -> bool:
        return self.query.get("fieldValidation") == "Strict"

    def json(self) -> Any:
        try:
            return json.loads(self.content)
        except ValueError:
            raise ApiError(400, "BadRequest", "the body is not JSON") from None


@dataclass(frozen=True)
class Answer:
    """A JSON body, or plain text."""

    code: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)

    def content(self) -> tuple[str, bytes]:
        """Return its content type and bytes."""
        if isinstance(self.body, bytes):
            return "text/plain; charset=utf-8", self.body
        return "application/json", json.dumps(self.body).encode()


@dataclass(frozen=True)
class Place:
    """What a path names: a collection, an object, or a subresource."""

    served: Served
    namespace: str
    name: str | None
    part: str

    @property
    def resource(self) -> str:
        return f"{self.served.plural}/{self.part}" if self.part else self.served.plural


def split(target: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(target)
    return parts.path, {key: values[-1] for key, values in parse_qs(parts.query).items()}


def place(path: str) -> Place:
    """Raises NoSuchPath if the group, version or kind is not served."""
    match [unquote(part) for part in path.strip("/").split("/")]:
        case ["api", version, "namespaces", namespace, plural, *rest]:
            return _place("", version, namespace, plural, rest)
        case ["apis", group, version, "namespaces", namespace, plural, *rest]:
            return _place(group, version, namespace, plural, rest)
    raise NoSuchPath


def _place(group: str, version: str, namespace: str, plural: str, rest: list[str]) -> Place:
    for one in served.ALL:
        if (one.group, one.version, one.plural) == (group, version, plural) and len(rest) <= 2:
            name, part = (*rest, "", "")[:2]
            return Place(one, namespace, name or None, part)
    raise NoSuchPath
