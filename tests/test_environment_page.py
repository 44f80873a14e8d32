"""Every variable of ours that the code reads or sets stands on a page."""

from __future__ import annotations

import re

from helpers import TESTS

ROOT = TESTS.parent
VARIABLE = re.compile(r"GPUFRAG_[A-Z][A-Z_]*[A-Z]")
INTERNAL = {"GPUFRAG_ATTACH"}
"""From gpufrag attach to the debugger that it starts; nobody sets them."""


def test_no_variable_is_without_a_page() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "exporter").rglob("*.py"))
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    used, told = set(VARIABLE.findall(code)), set(VARIABLE.findall(pages))
    assert len(used) > 5
    assert used - told == INTERNAL
