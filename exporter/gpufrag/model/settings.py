"""The settings of torch's caching allocator, and the sizes that follow from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import BadInput

MIB = 1 << 20
MIN_BLOCK = 512  # every block is a multiple of this
SMALL_REQUEST = 1 * MIB  # up to here a request is served by the small pool
SMALL_SEGMENT = 2 * MIB  # a segment, or an expandable page, of the small pool
MIN_OWN_SEGMENT = 10 * MIB  # from here a request gets a segment of its own size
SEGMENT_GRID = 2 * MIB  # … rounded up to this
INTERVALS = 16  # of roundup_power2_divisions: 1 MiB, 2 MiB, … 32 GiB and above


@dataclass(frozen=True)
class Settings:
    """What PYTORCH_CUDA_ALLOC_CONF decides, in bytes; the defaults are torch's own."""

    max_split_size: int | None = None
    """A block of this size or more is never split; None is unlimited."""
    max_non_split_rounding: int = 20 * MIB
    """How much larger than a request an unsplittable block may be."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    """Divisions between two powers of two, by interval of the request's size; 0 and 1 mean off."""
    garbage_collection_threshold: float = 0.0
    """Share of the limit above which old free segments are given back; 0 is off."""
    expandable_segments: bool = False
    large_segment_size: int = 20 * MIB
    """The segment for requests of 1 to 10 MiB, and the page of a large expandable segment."""
    per_process_memory_fraction: float = 1.0
    """The share of the device that the process may reserve (torch >= 2.10 reads it from the conf)."""

    def round(self, request: int) -> int:
        """The size of the block that a request of `request` bytes needs (torch: round_size)."""
        if request < MIN_BLOCK:
            return MIN_BLOCK
        divisions = self._divisions(request)
        if divisions > 1 and request > MIN_BLOCK * divisions:
            step = _power2_step(request, divisions)
            return -(-request // step) * step
        return -(-request // MIN_BLOCK) * MIN_BLOCK

    def largest_request(self, size: int) -> int:
        """The largest request whose rounded size is at most `size`; 0 if there is none."""
        floor = size // MIN_BLOCK * MIN_BLOCK
        if floor <= 0:
            return 0
        divisions = self._divisions(floor)
        if divisions > 1 and floor > MIN_BLOCK * divisions:
            floor -= floor % _power2_step(floor, divisions)
        return floor

    def segment_size(self, size: int) -> int:
        """Bytes asked of the driver for a block of `size` bytes (torch: get_allocation_size)."""
        if size <= SMALL_REQUEST:
            return SMALL_SEGMENT
        if size < MIN_OWN_SEGMENT:
            return self.large_segment_size
        return -(-size // SEGMENT_GRID) * SEGMENT_GRID

    def page_size(self, small: bool) -> int:
        """The unit in which an expandable segment is mapped and unmapped."""
        return SMALL_SEGMENT if small else self.large_segment_size

    def _divisions(self, request: int) -> int:
        interval = max(0, request.bit_length() - 1 - 20)
        return self.roundup_power2_divisions[min(interval, INTERVALS - 1)]


def _power2_step(size: int, divisions: int) -> int:
    """The distance between two allowed sizes in the power-of-two interval that holds `size`."""
    return 1 << (size.bit_length() - divisions.bit_length())


def parse_conf(text: str) -> Settings:
    """Settings from the text of PYTORCH_CUDA_ALLOC_CONF; keys that do not change sizes are passed over.

    Raises BadInput for a value that is not of its key's form.
    """
    settings = Settings()
    for key, value in _split(text):
        if (field := _CONF_FIELDS.get(key)) is not None:
            try:
                settings = replace(settings, **field(value))
            except ValueError:
                raise BadInput(f"allocator setting {key}:{value} is not of the form that torch takes") from None
    return settings


def parse_recorded(recorded: Mapping[str, Any]) -> Settings:
    """Settings from a snapshot's `allocator_settings` (torch >= 2.3).

    The conf text inside fills in what the dict leaves out; where both speak the dict wins, because it is what
    the allocator acts on.
    """
    settings = parse_conf(str(recorded.get("PYTORCH_CUDA_ALLOC_CONF") or ""))
    try:
        if (split := recorded.get("max_split_size")) is not None:
            settings = replace(settings, max_split_size=None if int(split) < 0 else int(split))
        if (threshold := recorded.get("garbage_collection_threshold")) is not None:
            settings = replace(settings, garbage_collection_threshold=float(threshold))
        if (expandable := recorded.get("expandable_segments")) is not None:
            settings = replace(settings, expandable_segments=bool(expandable))
        if (divisions := recorded.get("roundup_power2_divisions")) is not None:
            by_start = {int(start): int(n) for start, n in divisions.items()}
            table = tuple(by_start.get(1 << i, 0) for i in range(INTERVALS))
            settings = replace(settings, roundup_power2_divisions=table)
    except (AttributeError, TypeError, ValueError) as error:
        raise BadInput(f"allocator_settings of the snapshot cannot be read: {error}") from None
    return settings


def _split(text: str) -> list[tuple[str, str]]:
    """`a:1,b:[x:2,y:3]` -> [("a", "1"), ("b", "[x:2,y:3]")]."""
    pairs = re.findall(r"\s*([A-Za-z_0-9]+)\s*:\s*(\[[^\]]*\]|[^,]*)", text)
    return [(key, value.strip()) for key, value in pairs]


def _parse_divisions(value: str) -> tuple[int, ...]:
    """One number for all intervals, or `[256:1,512:2,>:8]`: MiB starts, each up to the next named one."""
    if not value.startswith("["):
        return (int(value),) * INTERVALS
    table = [0] * INTERVALS
    done = 0  # first interval that no entry has filled
    divisions = 0
    for entry in value.strip("[] ").split(","):
        start, _, number = entry.partition(":")
        divisions = int(number)
        end = INTERVALS - 1 if start.strip() == ">" else min(int(start).bit_length() - 1, INTERVALS - 1)
        table[done : end + 1] = [divisions] * (end + 1 - done)
        done = max(done, end + 1)
    table[done:] = [divisions] * (INTERVALS - done)
    return tuple(table)


def _parse_bool(value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError(value)
    return value == "True"


_CONF_FIELDS = {
    "max_split_size_mb": lambda v: {"max_split_size": int(v) * MIB},
    "max_non_split_rounding_mb": lambda v: {"max_non_split_rounding": int(v) * MIB},
    "roundup_power2_divisions": lambda v: {"roundup_power2_divisions": _parse_divisions(v)},
    "garbage_collection_threshold": lambda v: {"garbage_collection_threshold": float(v)},
    "expandable_segments": lambda v: {"expandable_segments": _parse_bool(v)},
    "large_segment_size_mb": lambda v: {"large_segment_size": int(v) * MIB},
    "per_process_memory_fraction": lambda v: {"per_process_memory_fraction": float(v)},
}
