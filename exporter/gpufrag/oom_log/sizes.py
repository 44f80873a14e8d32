"""Sizes as logs print them: `2.00 GiB`, `2.00GiB`, `2147483648 bytes`, `2,147,483,648 bytes`, `3206B`, `1.50G`."""

from __future__ import annotations

import re
from typing import NamedTuple

SIZE = (
    r"((?<![0-9,.])(?:[0-9]{1,26}|[0-9]{1,3}(?:,[0-9]{3}){1,8})(?:\.[0-9]{1,6})?"
    r" {0,2}(?:[KMGTP]i?B|[KMGT]\b|bytes?\b|B\b))"
)
"""Every repetition is bounded, here and in all patterns of this package: time grows with a line's length alone."""
_PARTS = re.compile(r"([0-9,]+)(?:\.([0-9]+))? *([KMGTP]?)(i?)")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_NOT_TOLD = 1 << 60
"""Torch prints 17179869184.00 GiB where a figure could not be had."""


class Size(NamedTuple):
    bytes: int
    precision: int
    """Half of its last digit: by how much the figure may be wrong."""


def read_size(text: str | None, binary: bool = False) -> Size | None:
    """What SIZE has matched; None where there is none, or where the printer itself had none.

    A letter alone (`1.50G`, as XLA prints) is a power of 1024; so is `GB` for a printer that is `binary`.
    """
    parts = None if text is None else _PARTS.match(text)
    if parts is None or text is None:
        return None
    whole, fraction, letter, i = parts.groups(default="")
    decimal = letter and not i and not binary and text.endswith("B")
    unit = (1000 if decimal else 1024) ** _POWERS[letter]
    digits = int(whole.replace(",", "") + fraction)
    size = digits * unit // 10 ** len(fraction)
    return None if size >= _NOT_TOLD else Size(size, unit // (2 * 10 ** len(fraction)))
