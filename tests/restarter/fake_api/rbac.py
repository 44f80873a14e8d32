"""Permissions: for each bearer token, the rules of a Role in one namespace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ADMIN = ({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},)


@dataclass(frozen=True)
class User:
    """A user with rules in a namespace; `*` is every namespace."""

    name: str
    rules: tuple[Mapping[str, Any], ...] = ADMIN
    namespace: str = "*"

    def may(self, verb: str, group: str, resource: str, namespace: str, name: str = "") -> bool:
        if self.namespace not in ("*", namespace):
            return False
        return any(_covers(rule, verb, group, resource, name) for rule in self.rules)


def _covers(rule: Mapping[str, Any], verb: str, group: str, resource: str, name: str) -> bool:
    asked = (("verbs", verb), ("apiGroups", group), ("resources", resource))
    named = "resourceNames" not in rule or name in rule["resourceNames"]
    return named and all(_holds(rule[key], value) for key, value in asked)


def _holds(granted: Iterable[str], value: str) -> bool:
    granted = list(granted)
    return "*" in granted or value in granted
