"""docs/restarter.md says what the tables say. GPUFRAG_UPDATE=1 brings it up to date."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

import yaml

from gpufrag.config import reader
from gpufrag.restarter.metrics import ROWS
from gpufrag.restarter.reasons import REASONS
from gpufrag.restarter.settings import RestarterConfig
from helpers import TESTS, kept

PAGE = TESTS.parent / "docs" / "restarter.md"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def between(name: str, text: str) -> tuple[str, str, str]:
    before, begin, rest = text.partition(f"<!-- {name}: begin -->\n")
    middle, end, after = rest.partition(f"<!-- {name}: end -->")
    assert begin, name
    assert end, name
    return before + begin, middle, end + after


def test_the_reasons_are_up_to_date() -> None:
    before, _, after = between("reasons", PAGE.read_text(encoding="utf-8"))
    rows = [(f"`{one.label}`", one.text, one.remedy) for one in REASONS]
    kept(PAGE, before + table(("reason", "what is the case", "what to do"), rows) + after)


def test_the_metrics_are_up_to_date() -> None:
    before, _, after = between("restarter metrics", PAGE.read_text(encoding="utf-8"))
    rows = [(f"`{row.name}`", row.kind, ", ".join(row.labels), row.help) for row in ROWS]
    kept(PAGE, before + table(("metric", "type", "labels", "meaning"), rows) + after)


def shown() -> dict[str, Any]:
    _, middle, _ = between("config", PAGE.read_text(encoding="utf-8"))
    found: dict[str, Any] = yaml.safe_load(middle.removeprefix("```yaml\n").removesuffix("```\n"))
    return found


def test_the_keys_that_are_shown_are_the_defaults() -> None:
    assert reader.load(RestarterConfig, None, shown()) == RestarterConfig()


def test_every_key_is_shown() -> None:
    raw = shown()
    for field in fields(RestarterConfig):
        value = getattr(RestarterConfig(), field.name)
        if is_dataclass(value) and field.name != "metrics_web":
            assert {one.name for one in fields(value)} == set(raw[field.name])
    assert {field.name for field in fields(RestarterConfig)} == set(raw)
