"""The agent's seven rules: each has a test that is there; and what no part of it may do, read from its own text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufrag.attach.agent_copy.modules import agent_files
from gpufrag.commands.run import PACKAGE
from helpers import TESTS

PAGE = (TESTS.parent / "docs" / "agent.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("| rule | it | proof |\n| --- | --- | --- |\n")[2].partition("\n\n")[0]
ROWS = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in TABLE.splitlines()]
NAMED = sorted({named for row in ROWS for named in re.findall(r"`tests/([\w/]+\.py)::(\w+)`", row[2])})
PARTS = [*agent_files(PACKAGE), Path("attach", "payload.py"), Path("attach", "bootstrap.py")]
FRAMEWORKS = {"torch", "jax", "jaxlib", "tensorflow"}
CHANGES = re.compile(
    "synchronize|empty_?cache|reset_(?:peak|accumulated|max)|_lazy_init$|cuda\\.init$|set_device|set_per_process"
    "|_record_memory_history|raw_alloc|raw_delete|caching_allocator_",
    re.IGNORECASE,
)
"""Of torch's names: what would wait for a device, allocate on it, free, reset or set something."""


def test_each_of_the_seven_rules_has_proofs() -> None:
    assert [row[0] for row in ROWS] == sorted(row[0] for row in ROWS)
    assert {row[0] for row in ROWS} == set("1234567")
    assert [row for row in ROWS if "`tests/" not in row[2]] == []


@pytest.mark.parametrize(("file", "test"), NAMED, ids="::".join)
def test_what_proves_it_is_there(file: str, test: str) -> None:
    assert f"def {test}(" in (TESTS / file).read_text(encoding="utf-8")


def _nodes(path: Path) -> Iterator[ast.AST]:
    """Without docstrings: they may tell of what is not done."""
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    prose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    yield from (node for node in ast.walk(tree) if node not in prose)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""] if node.level == 0 else []
    return [name.name for name in node.names] if isinstance(node, ast.Import) else []


def _named(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
        return node.value
    return ""


@pytest.mark.parametrize("path", PARTS, ids=str)
def test_no_part_of_it_imports_a_framework(path: Path) -> None:
    found = {name.partition(".")[0] for node in _nodes(path) for name in _imported(node)}
    assert found & FRAMEWORKS == set()
    assert not any(_named(node) in ("import_module", "__import__") for node in _nodes(path))


@pytest.mark.parametrize("path", PARTS, ids=str)
def test_nothing_that_changes_a_device_is_named_but_by_the_anchor(path: Path) -> None:
    found = [name for node in _nodes(path) if (name := _named(node)) and CHANGES.search(name)]
    assert bool(found) == (path.name == "anchor.py"), found


@pytest.mark.parametrize("name", ["cuda.synchronize", "cuda.empty_cache", "cuda.reset_peak_memory_stats", "cuda.init"])
def test_what_is_looked_for_would_be_found(name: str) -> None:
    assert CHANGES.search(name)
