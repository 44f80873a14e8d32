"""Every GPUFRAG_ variable that the code reads or sets is documented."""

from __future__ import annotations

import re

from helpers import TESTS

ROOT = TESTS.parent
VARIABLE = re.compile(r"GPUFRAG_[A-Z][A-Z_]*[A-Z]")
INTERNAL = {"GPUFRAG_ATTACH", "GPUFRAG_CPU_TORCH_NOTED"}
"""Set by gpufrag for its own child processes."""


def test_every_variable_is_documented() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "exporter").rglob("*.py"))
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    used, documented = set(VARIABLE.findall(code)), set(VARIABLE.findall(pages))
    assert len(used) > 5
    assert used - documented == INTERNAL
