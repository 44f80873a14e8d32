"""Sizes as logs print them."""

from __future__ import annotations

import re

import pytest

from gpufrag.oom_log.sizes import SIZE, read_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2.00 GiB", 2 << 30),
        ("2147483648 bytes", 2 << 30),
        ("2,147,483,648 bytes", 2 << 30),
        ("3206B", 3206),
        ("1.50G", 3 << 29),
        ("2 GB", 2_000_000_000),
    ],
)
def test_what_is_a_size(text: str, size: int) -> None:
    found = re.fullmatch(SIZE, text)
    assert found is not None
    read = read_size(found[1])
    assert read is not None
    assert read.bytes == size


@pytest.mark.parametrize("text", ["2,5 GiB", "12,34 MiB", "1.2.3 GiB", "-GiB", "lots", "1,2345 KiB"])
def test_what_is_none_is_not_read_in_part(text: str) -> None:
    """A decimal comma, as no printer that is known here writes, is not to make ten times as much of it."""
    assert re.search(SIZE, text) is None
