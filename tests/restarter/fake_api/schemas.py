"""Validation of objects: by the published schemas for core kinds, by `crds` for custom resources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

import jsonschema
from referencing import Registry, Resource

from restarter.fake_api import crds
from restarter.fake_api.served import Served

VERSION = "v1.36.0"


def problems(served: Served, raw: Any) -> list[tuple[str, str]]:
    """Return field and message for every invalid value."""
    return [(_dotted(error.absolute_path), error.message[:120]) for error in _errors(served, raw) if not _extra(error)]


def unknown_fields(served: Served, raw: Any) -> list[list[Any]]:
    """Return the path of every unknown field."""
    return [
        [*error.absolute_path, name]
        for error in _errors(served, raw)
        if _extra(error)
        for name in error.instance.keys() - error.schema.get("properties", {}).keys()
    ]


def drop(raw: Any, path: list[Any]) -> None:
    """Remove the field at `path`, as a server does with an unknown field."""
    for key in path[:-1]:
        raw = raw[key]
    del raw[path[-1]]


def _dotted(path: Any) -> str:
    return ".".join(map(str, path))


def _extra(error: jsonschema.ValidationError) -> bool:
    return error.validator == "additionalProperties"


def _errors(served: Served, raw: Any) -> Iterator[jsonschema.ValidationError]:
    return _validator(served).iter_errors(raw)


@cache
def _validator(served: Served) -> Any:
    if served.custom:
        return jsonschema.Draft202012Validator(crds.SCHEMAS[served.kind])
    group = served.group.split(".")[0]
    schema = _published("-".join(filter(None, (served.kind.lower(), group, served.version))))
    registry: Any = Resource.from_contents(schema) @ (Resource.from_contents(_published("_definitions")) @ Registry())
    return jsonschema.Draft202012Validator(schema, registry=registry)


@cache
def _published(name: str) -> Any:
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"{VERSION}-local-strict"
    return json.loads((folder / f"{name}.json").read_bytes())
