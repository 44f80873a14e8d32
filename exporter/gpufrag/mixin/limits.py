"""What a Config may hold: each check raises UsageError that names the key and says what belongs there.

Prometheus would refuse the rules else, or, worse, take them: an extra label that overwrites the trigger's own, or the
one that names the job, sends restarts astray.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UsageError
from .alert import RESTART

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_VALUE = r"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_TEST = rf"\s*(?:=~|!~|!=|=)\s*{_VALUE}"
_MATCHER = rf"{_LABEL.pattern}{_TEST}"
_NAMED_MATCHER = re.compile(rf"({_LABEL.pattern}){_TEST}")
_SELECTOR = re.compile(rf"(?:\s*{_MATCHER}\s*(?:,\s*{_MATCHER}\s*)*,?\s*)?")
_INSIDE_A_JOB = ("rank", "device", "process", "framework", "pool", "at")
_OWN = ("alertname", *RESTART)
_SHARES = ("free_share", "unused_tune", "unused_act", "agent_share")
_RATIOS = ("fragmentation_ratio", "cache_ratio")
_SHORTEST_S = 0.001  # Prometheus counts in milliseconds


def check_thresholds(values: Mapping[str, float]) -> None:
    for name in _SHARES:
        if not 0 < values[name] < 1:
            raise UsageError(f"thresholds.{name} is {values[name]:g}: it is a share, above 0 and below 1")
    for name in _RATIOS:
        if not 1 < values[name] < math.inf:
            raise UsageError(f"thresholds.{name} is {values[name]:g}: it must be above 1, where nothing is in pieces")
    if not 0 <= values["retries_per_minute"] < math.inf:
        raise UsageError(f"thresholds.retries_per_minute is {values['retries_per_minute']:g}: it must be 0 or more")


def check_times(values: Mapping[str, float]) -> None:
    for name, seconds in values.items():
        if not _SHORTEST_S <= seconds < math.inf:
            raise UsageError(f"timing.{name} is {seconds:g} s: Prometheus knows nothing shorter than 1 ms")


def check_selector(selector: str, where: str) -> None:
    """A backtick would end the query that stands in an alert's text."""
    if not _SELECTOR.fullmatch(selector) or "`" in selector:
        raise UsageError(
            f'{where} is no list of matchers: write them without braces, as in cluster="a",namespace=~"ml-.*"'
        )
    if any(label == "__name__" for label, _ in matchers(selector)):
        raise UsageError(f"{where} has __name__, and every rule names its metric itself: leave it out")


def matchers(selector: str) -> list[tuple[str, str]]:
    """The label that each matcher of a selector is about, and the matcher."""
    return [(found[1], found[0]) for found in _NAMED_MATCHER.finditer(selector)]


def check_job_labels(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        _check_name(name)
        if name in seen:
            raise UsageError(f"job_labels has {name} twice: name each label once")
        if name in (*_INSIDE_A_JOB, *_OWN) or name.startswith("__"):
            raise UsageError(f"job_labels has {name}, which tells no jobs apart: name labels that a scrape gives")
        seen.add(name)
    if not seen:
        raise UsageError("job_labels is empty: name at least one label that tells jobs apart")


def check_extra_labels(names: Iterable[str], where: str, taken: Iterable[str]) -> None:
    """`taken` are labels of an alert that have a meaning already."""
    for name in names:
        _check_name(name)
        if name in (*taken, *_OWN) or name.startswith("__"):
            raise UsageError(f"{where} has {name}, which alerts use themselves: take another name")


def check_filled(texts: Mapping[str, str], where: str) -> None:
    for name, text in texts.items():
        if not text:
            raise UsageError(f"{where}.{name} is empty: a label without a value is none; write a word")


def check_address(url: str) -> None:
    if set("{} ") & set(url):
        raise UsageError("runbook_url has a brace or a space: write the address of the folder of pages")


def _check_name(name: Any) -> None:
    if not _LABEL.fullmatch(name):
        raise UsageError(f"{name!r:.40} is not the name of a label: letters, digits and _, no digit first")
