"""The pages of the targets say what the code does."""

from __future__ import annotations

import re

import pytest
from gpufrag.restarter.kubernetes.cluster import GroupKind

from gpufrag.restarter.kubernetes import owners
from gpufrag.restarter.kubernetes.permissions import needed
from gpufrag.restarter.kubernetes.targets import TARGETS
from helpers import TESTS

PAGES = TESTS.parent / "docs" / "targets"
CODE = TESTS.parent / "exporter" / "gpufrag" / "restarter"
INDEX = (PAGES / "README.md").read_text(encoding="utf-8")
HEADINGS = [
    "How it is restarted",
    "What is lost",
    "What it counts against",
    "What to know",
    "Try it dry",
    "Permissions",
]


def page_of(kind: GroupKind) -> str:
    (page,) = [text for path in PAGES.glob("*.md") if f"\n`{kind}`\n" in (text := path.read_text(encoding="utf-8"))]
    return page


def unwrapped(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("kind", TARGETS, ids=str)
def test_each_kind_has_a_page(kind: GroupKind) -> None:
    page = page_of(kind)
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == HEADINGS
    assert TARGETS[kind].lost in unwrapped(page)
    assert f"({page_name(page)}.md)" in INDEX
    assert TARGETS[kind].lost in INDEX


def page_name(page: str) -> str:
    return next(path.stem for path in PAGES.glob("*.md") if path.read_text(encoding="utf-8") == page)


@pytest.mark.parametrize("kind", TARGETS, ids=str)
def test_its_permissions_are_those_that_are_needed(kind: GroupKind) -> None:
    table = page_of(kind).partition("## Permissions")[2].strip().splitlines()[2:]
    assert table == [
        f"| `{one.resource}` | {one.kind.group or 'core'} | {', '.join(one.verbs)} | {one.why} |"
        for one in needed([kind])
    ]


def test_every_refusal_is_in_the_index() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in CODE.rglob("*.py"))
    reasons = set(re.findall(r'Refused\(\s*"([a-z-]+)"', source))
    assert len(reasons) > 12
    assert {reason for reason in reasons if f"`{reason}`" not in INDEX} == set()
    assert f"At most {['no', 'one', 'two', 'three', 'four', 'five'][owners.MAX_HOPS]} are followed" in INDEX
