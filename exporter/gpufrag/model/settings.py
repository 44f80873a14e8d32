"""The settings of torch's caching allocator, and the sizes that follow from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import Enum, auto
from reprlib import repr as shown
from typing import Any

from ..errors import BadInput

MIB, GIB = 1 << 20, 1 << 30
MIN_BLOCK = 512  # every block is a multiple of this
SMALL_REQUEST = 1 * MIB  # the small pool serves requests up to this size
SMALL_SEGMENT = 2 * MIB  # a segment, or an expandable page, of the small pool
MIN_OWN_SEGMENT = 10 * MIB  # a request of this size or more gets a segment of exactly its size
SEGMENT_GRID = 2 * MIB  # … rounded up to this
NEWEST = (2, 15)
INTERVALS = 16  # of roundup_power2_divisions: 1 MiB, 2 MiB, … 32 GiB and above


class TieBreak(Enum):
    """Which of several free blocks of equal size torch takes."""

    LOWEST_ADDRESS = auto()
    OLDEST_BLOCK = auto()
    OLDEST_SEGMENT = auto()


@dataclass(frozen=True)
class Settings:
    """What PYTORCH_CUDA_ALLOC_CONF decides, in bytes; the defaults are torch's own."""

    max_split_size: int | None = None
    """A block of this size or more is never split; None is unlimited."""
    max_non_split_rounding: int = 20 * MIB
    """How much larger than the request a block that may not be split can be; default: large_segment_size."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    """Divisions between two powers of two, by interval of the request's size; 0 and 1 mean off."""
    garbage_collection_threshold: float = 0.0
    """Share of the limit above which the allocator releases old free segments; 0 means off."""
    expandable_segments: bool = False
    large_segment_size: int = 20 * MIB
    """The segment for requests of 1 to 10 MiB, and the page of a large expandable segment."""
    per_process_memory_fraction: float = 1.0
    """The share of the device that the process may reserve (torch >= 2.10 reads it from the setting)."""
    expandable_segments_reserve: int | float | None = None
    """Address space of an expandable segment: bytes, or a share of the device (float); None: 9/8. Since torch 2.15."""
    torch: tuple[int, int] = NEWEST
    """The torch release whose rules apply: major and minor number."""

    @property
    def tie_break(self) -> TieBreak:
        if self.torch < (2, 12):
            return TieBreak.LOWEST_ADDRESS
        return TieBreak.OLDEST_BLOCK if self.torch < (2, 13) else TieBreak.OLDEST_SEGMENT

    def round(self, request: int) -> int:
        """Return the block size for a request of `request` bytes (torch: round_size)."""
        if request < MIN_BLOCK:
            return MIN_BLOCK
        divisions = self._divisions(request)
        if divisions > 1 and request > MIN_BLOCK * divisions:
            step = _power2_step(request, divisions)
            return -(-request // step) * step
        if divisions == 1 and self.torch < (2, 4):
            return request  # those releases do not round to either
        return -(-request // MIN_BLOCK) * MIN_BLOCK

    def largest_request(self, size: int) -> int:
        """Return the largest request whose rounded size is at most `size`; 0 if there is none."""
        floor = size // MIN_BLOCK * MIN_BLOCK
        if floor <= 0:
            return 0
        divisions = self._divisions(floor)
        if divisions == 1 and self.torch < (2, 4):
            return size
        if divisions > 1 and floor > MIN_BLOCK * divisions:
            floor -= floor % _power2_step(floor, divisions)
        return floor

    def segment_size(self, size: int) -> int:
        """Return the bytes to request from the driver for a block of `size` bytes (torch: get_allocation_size)."""
        if size <= SMALL_REQUEST:
            return SMALL_SEGMENT
        if size < MIN_OWN_SEGMENT:
            return self.large_segment_size
        return -(-size // SEGMENT_GRID) * SEGMENT_GRID

    def page_size(self, small: bool) -> int:
        """Return the unit in which an expandable segment is mapped and unmapped."""
        return SMALL_SEGMENT if small else self.large_segment_size

    def address_space(self, small: bool, device: int | None) -> int | None:
        """Return the bytes that an expandable segment can grow to on a device of this size; None if that is unknown."""
        page, reserve = self.page_size(small), self.expandable_segments_reserve
        if isinstance(reserve, int):
            size = reserve
        elif device is None:
            return None
        else:
            size = device * 9 // 8 if reserve is None else int(device * reserve)
        return -(-size // page) * page

    def _divisions(self, request: int) -> int:
        interval = max(0, request.bit_length() - 1 - 20)
        return self.roundup_power2_divisions[min(interval, INTERVALS - 1)]


def _power2_step(size: int, divisions: int) -> int:
    """Return the distance between two allowed sizes in the power-of-two interval that contains `size`."""
    return 1 << (size.bit_length() - divisions.bit_length())


def parse_conf(text: str, torch: tuple[int, int] = NEWEST) -> Settings:
    """Return the settings in a PYTORCH_CUDA_ALLOC_CONF text; ignores keys that do not change sizes.

    Raises BadInput for a value that torch rejects.
    """
    changes: dict[str, Any] = {}
    for key, value in _split(text):
        if key in CONF_KEYS:
            name, convert = CONF_KEYS[key]
            try:
                changes[name] = _divisions(value, torch) if convert is _divisions else convert(value)
            except ValueError:
                raise BadInput(f"allocator setting {key}:{shown(value)} is not a value that torch accepts") from None
    segment = changes.get("large_segment_size", Settings.large_segment_size)
    changes.setdefault("max_non_split_rounding", segment)
    for name in ("max_split_size", "max_non_split_rounding"):
        if changes.get(name, segment) < segment:
            raise BadInput(f"allocator setting {name}_mb must be {segment // MIB} or more, the large segment's size")
    return Settings(**changes, torch=torch)


def parse_recorded(recorded: Mapping[str, Any]) -> Settings:
    """Return the settings in a snapshot's `allocator_settings` (torch >= 2.3).

    The conf text inside provides what the dict lacks. If both have a value the dict wins, because the allocator uses
    it. Raises BadInput for a value that torch does not write.
    """
    conf = recorded.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    if not isinstance(conf, str):
        raise BadInput(f"allocator_settings of the snapshot: PYTORCH_CUDA_ALLOC_CONF is {shown(conf)}, not a text")
    changes: dict[str, Any] = {}
    release = recorded.get("torch")
    torch = NEWEST if release is None else parse_release(release)
    for key, convert in _RECORDED_KEYS.items():
        if (value := recorded.get(key)) is not None:
            try:
                changes[key] = convert(value)
            except (AttributeError, OverflowError, TypeError, ValueError):
                raise BadInput(f"allocator_settings of the snapshot: {key} cannot be {shown(value)}") from None
    return replace(parse_conf(conf, torch), **changes)


def parse_release(text: str) -> tuple[int, int]:
    """`2.13.0+cu130` -> (2, 13). Raises BadInput if the text is not a release of torch 2."""
    found = re.match(r"2\.([0-9]{1,3})(?![0-9])", text) if isinstance(text, str) else None
    if not found:
        raise BadInput(f"{shown(text)} is not a release of torch such as 2.11.0")
    return 2, int(found[1])


def infer_release(snapshot: Mapping[str, Any]) -> str | None:
    """Return the newest release that writes only this snapshot's keys; None if they do not reveal it."""
    recorded = snapshot.get("allocator_settings")
    settings = recorded if isinstance(recorded, Mapping) else {}
    traces = snapshot.get("device_traces")
    entries = [t[0] for t in traces if isinstance(t, list) and t] if isinstance(traces, list) else []
    entry = entries[0] if entries and isinstance(entries[0], Mapping) else {}
    if "host_segments" in snapshot:
        return "{}.{}".format(*NEWEST)
    if "max_cached_size" in settings:
        return "2.13"
    if "pool_id" in entry:
        return "2.12"
    if "user_metadata" in entry:
        return "2.11"
    if "graph_capture_record_stream_reuse" in settings:
        return "2.9" if entry else "2.12"
    if "external_annotations" in snapshot:
        return "2.8"
    if "device_traces" in snapshot:
        return "2.4" if recorded is not None else "2.2"
    return None


def _split(text: str) -> list[tuple[str, str]]:
    """`a:1,b:[x:2,y:3]` -> [("a", "1"), ("b", "[x:2,y:3]")]."""
    pairs = re.findall(r"\s*([A-Za-z_0-9]+)\s*:\s*(\[[^\]]*\]|[^,]*)", text)
    return [(key, value.strip()) for key, value in pairs]


def _divisions(value: str, torch: tuple[int, int] = NEWEST) -> tuple[int, ...]:
    """Parse one number for all intervals, or a list such as `[256:1,512:2,>:8]` by interval start in MiB.

    The first entry also applies to all smaller sizes. `>` applies to all sizes above the previous entry, and before
    torch 2.10 to that entry too. Other intervals have no divisions.
    """
    if not value.startswith("["):
        return (_power_of_2(value),) * INTERVALS
    if not value.endswith("]"):
        raise ValueError(value)
    table = [0] * INTERVALS
    last = None
    for entry in value.strip("[] ").split(","):
        start, _, number = entry.partition(":")
        divisions = 0 if number.strip() == "0" else _power_of_2(number)
        if start.strip() == ">":
            first, end = (last or 0) + (torch >= (2, 10)), INTERVALS
        else:
            interval = min(_power_of_2(start).bit_length(), INTERVALS) - 1
            first, end = 0 if last is None else interval, interval + 1
            last = interval
        table[first:end] = [divisions] * (end - first)
    return tuple(table)


def _number(value: str | int) -> int:
    """Accept plain digits only: Python's int accepts more than torch does (1_000)."""
    if not re.fullmatch(r"\s*[0-9]+\s*", str(value)):
        raise ValueError(value)
    return int(value)


def _power_of_2(value: str) -> int:
    number = _number(value)
    if number <= 0 or number & (number - 1):
        raise ValueError(number)
    return number


def _large_segment(value: str) -> int:
    size = _mebibytes(value)
    if size <= MIN_OWN_SEGMENT:
        raise ValueError(value)
    return size


def _reserve(value: str) -> int | float | None:
    """`0.5` -> 0.5, a share; `40G` -> bytes; None for anything else, which torch ignores with a warning."""
    if not re.fullmatch(r"[0-9.]+(e-?[0-9]+)?G?", value):
        return None
    number = float(value.removesuffix("G"))
    if not 0 < number < 1 << 20:
        return None
    return int(number * GIB) if value.endswith("G") else number


def _threshold(value: str) -> float:
    if not 0 < float(value) < 1:
        raise ValueError(value)
    return float(value)


def _mebibytes(value: str) -> int:
    if not 0 < _number(value) < 1 << 40:
        raise ValueError(value)
    return _number(value) * MIB


def _bool(value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError(value)
    return value == "True"


def _share(value: str | float) -> float:
    if not 0 <= float(value) <= 1:
        raise ValueError(value)
    return float(value)


CONF_KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "max_split_size_mb": ("max_split_size", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding", _mebibytes),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _threshold),
    "expandable_segments": ("expandable_segments", _bool),
    "expandable_segments_reserve": ("expandable_segments_reserve", _reserve),
    "large_segment_size_mb": ("large_segment_size", _large_segment),
    "per_process_memory_fraction": ("per_process_memory_fraction", _share),
}


def _recorded_size(value: int) -> int | None:
    return None if int(value) < 0 else int(value)  # torch writes SIZE_MAX, unlimited, as -1


def _recorded_divisions(by_start: Mapping[Any, Any]) -> tuple[int, ...]:
    """Keys are interval starts in MiB, as text."""
    table = {int(start): _power_of_2(number) if number else 0 for start, number in by_start.items()}
    return tuple(table.get(1 << interval, 0) for interval in range(INTERVALS))


def _recorded_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


_RECORDED_KEYS: dict[str, Callable[[Any], Any]] = {
    "max_split_size": _recorded_size,
    "roundup_power2_divisions": _recorded_divisions,
    "garbage_collection_threshold": _share,
    "expandable_segments": _recorded_bool,
}

_BOOL, _NUMBER = "True|False", "[0-9]+"
NEUTRAL_KEYS = {
    "backend": "native",
    "graph_capture_record_stream_reuse": _BOOL,
    "pinned_free_catch_all": _BOOL,
    "pinned_max_cached_size_mb": _NUMBER,
    "pinned_max_round_threshold_mb": _NUMBER,
    "pinned_num_register_threads": _NUMBER,
    "pinned_reserve_segment_size_mb": _NUMBER,
    "pinned_use_background_threads": _BOOL,
    "pinned_use_cuda_host_register": _BOOL,
    "pinned_use_hip_host_register": _BOOL,
    "release_lock_on_cudamalloc": _BOOL,
    "release_lock_on_hipmalloc": _BOOL,
    "throw_on_cudamalloc_oom": _BOOL,
}
"""Options that do not affect GPU blocks, with the pattern of their values."""
_LIMITING = {"per_process_memory_fraction"}


def read_conf(text: str, torch: tuple[int, int] = NEWEST) -> Settings:
    """Parse a conf; an empty text means torch's defaults. Raises BadInput for what torch rejects."""
    if text.strip():
        refuse_unknown_keys(text)
    return parse_conf(text, torch)


def refuse_unknown_keys(text: str) -> None:
    """Raises BadInput unless each part is a `key:value` of torch (up to 2.15): a typo would change nothing."""
    for part in _parts(text):
        key, colon, value = (piece.strip() for piece in part.partition(":"))
        if not colon:
            raise BadInput(f"allocator setting {shown(part)} is not of the form key:value")
        if key not in CONF_KEYS:
            _refuse_unless_neutral(key, value)
        elif key == "expandable_segments_reserve" and _reserve(value) is None:
            raise BadInput(
                f"allocator setting {key}:{shown(value)} is neither a share such as 0.5 nor a size such as 40G"
            )


def without_choices(text: str) -> str:
    """Return the options of a conf that another memory layout does not replace, including unknown ones."""
    replaced = CONF_KEYS.keys() - _LIMITING
    return ",".join(part for part in _parts(text) if part and part.partition(":")[0].strip() not in replaced)


def unknown_options(text: str) -> list[str]:
    """Return the parts of a conf that torch accepted and gpufrag does not support."""
    unknown = []
    for part in filter(None, _parts(text)):
        try:
            refuse_unknown_keys(part)
        except BadInput:
            unknown.append(part)
    return unknown


def _parts(text: str) -> list[str]:
    """`a:1,b:[x:2,y:3]` -> ["a:1", "b:[x:2,y:3]"]."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text)]


def _refuse_unless_neutral(key: str, value: str) -> None:
    if key not in NEUTRAL_KEYS:
        if key == "expandable_segments_reserve_by_class":
            raise BadInput(f"gpufrag does not support the allocator setting {key}: only one reserve for all streams")
        near = get_close_matches(key, [*CONF_KEYS, *NEUTRAL_KEYS], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise BadInput(f"torch has no allocator setting {shown(key)}{hint}")
    if key == "backend" and value == "cudaMallocAsync":
        raise BadInput(
            "allocator setting backend:cudaMallocAsync is the driver's allocator; gpufrag supports only native"
        )
    if not re.fullmatch(NEUTRAL_KEYS[key], value):
        raise BadInput(f"allocator setting {key}:{shown(value)} is not a value that torch accepts")
