"""Label selectors in the form of a URL."""

from __future__ import annotations

import re
from collections.abc import Mapping

SET_BASED = re.compile(r"\s*(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^)]*)\)\s*")


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    return all(_holds(term, labels) for term in re.split(r",(?![^(]*\))", selector) if term.strip())


def _holds(term: str, labels: Mapping[str, str]) -> bool:
    if found := SET_BASED.fullmatch(term):
        values = [value.strip() for value in found["values"].split(",")]
        return (labels.get(found["key"]) in values) == (found["operator"] == "in")
    if "=" not in term:
        return (term.lstrip("!").strip() in labels) != term.startswith("!")
    key, _, value = term.replace("==", "=").partition("=")
    return (labels.get(key.rstrip("! ")) == value.strip()) != key.endswith("!")
