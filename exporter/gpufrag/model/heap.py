"""The allocator's heap at one moment, parsed from torch's snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter
from reprlib import repr as shown  # short for any value
from typing import Any, NamedTuple

from ..errors import BadInput
from .settings import Settings, parse_recorded

ALLOCATED = "active_allocated"
AWAITING = "active_pending_free"  # freed, but a stream may still use it
INACTIVE = "inactive"
DEFAULT_POOL = (0, 0)
MOST = (1 << 64) - 1
_STATES = {ALLOCATED: ALLOCATED, AWAITING: AWAITING, INACTIVE: INACTIVE, "active_awaiting_free": AWAITING}
_KINDS = ("small", "large")
_SUMS = ("allocated_size", "active_size", "requested_size")
_SEGMENT_KEYS = itemgetter("device", "address", "total_size", "stream", "segment_type", "blocks")


class Block(NamedTuple):
    """One block: bytes `address` to `address + size`; `requested` is what its owner asked for."""

    address: int
    size: int
    requested: int
    state: str


class Segment(NamedTuple):
    """One cudaMalloc, or one contiguous mapped range of an expandable segment.

    Blocks are columns of equal length in address order: ten times cheaper than objects in a training process with
    100,000 blocks. `requested` is stale on inactive blocks (torch does not reset it).
    """

    device: int
    address: int
    stream: int
    small: bool
    pool: tuple[int, int]
    expandable: bool
    sizes: Sequence[int]
    requested: Sequence[int]
    states: Sequence[str]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def private(self) -> bool:
        """Whether it belongs to a CUDA graph or a MemPool; no other code can allocate from it."""
        return self.pool != DEFAULT_POOL

    def blocks(self) -> Iterator[Block]:
        """Iterate over the blocks as objects; slower than the columns."""
        addresses = accumulate(self.sizes, initial=self.address)
        return map(Block, addresses, self.sizes, self.requested, self.states)


@dataclass(frozen=True)
class Heap:
    """Every segment of a process's allocator, ordered by device and address, and its settings."""

    segments: tuple[Segment, ...]
    settings: Settings = field(default_factory=Settings)

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices with memory, by the process's own index."""
        return tuple(sorted({segment.device for segment in self.segments}))

    def on_device(self, device: int) -> Heap:
        return Heap(tuple(s for s in self.segments if s.device == device), self.settings)


def parse(snapshot: Mapping[str, Any] | Sequence[Any], settings: Settings | None = None) -> Heap:
    """Parse torch's snapshot (2.0 and newer; the dict, or its list of segments alone).

    `settings` apply if the snapshot has none (torch < 2.3, or `memory_snapshot()`, which returns only segments).
    Ignores unknown keys. Raises BadInput, naming the segment, if a key is missing, a value has the wrong type, the
    blocks do not tile their segment, or sizes do not add up.
    """
    recorded: Any = None
    raw_segments: Any = snapshot
    if isinstance(snapshot, Mapping):
        if "segments" not in snapshot:
            raise BadInput(
                "not a memory snapshot: it has no key 'segments'; take one with torch.cuda.memory._dump_snapshot()"
            )
        raw_segments = snapshot["segments"]
        recorded = snapshot.get("allocator_settings")
    if not isinstance(raw_segments, (list, tuple)):
        raise BadInput(
            f"not a memory snapshot: 'segments' is {type(raw_segments).__name__}, not list; take a new snapshot"
        )
    if isinstance(recorded, Mapping) and recorded:
        settings = parse_recorded(recorded)
    segments = [_parse_segment(raw, index) for index, raw in enumerate(raw_segments)]
    segments.sort(key=lambda segment: (segment.device, segment.address))
    _refuse_overlap(segments)
    return Heap(tuple(segments), settings or Settings())


def _parse_segment(raw: Any, index: int) -> Segment:
    try:
        return _checked_segment(raw)
    except KeyError as error:
        raise _broken(raw, index, f"has no key {error}") from None
    except (TypeError, AttributeError) as error:
        raise _broken(raw, index, f"does not have torch's form ({error})") from None
    except ValueError as error:
        raise _broken(raw, index, str(error)) from None


def _checked_segment(raw: Mapping[str, Any]) -> Segment:
    """Parse one raw segment. Raises KeyError, TypeError, AttributeError or ValueError.

    One loop over the blocks is twice as fast as a pass per column (measured).
    """
    device, address, total, stream, kind, blocks = _SEGMENT_KEYS(raw)
    pool = raw.get("segment_pool_id", DEFAULT_POOL)
    pool = DEFAULT_POOL if pool == DEFAULT_POOL else tuple(pool)
    _require_numbers(device, address, stream, *pool)
    if kind not in _KINDS or len(pool) != 2:
        raise ValueError(f"has segment_type {shown(kind)} and segment_pool_id {shown(pool)}, not values of torch")
    sizes, requests, states = [], [], []
    end, allocated, awaiting, requested = address, 0, 0, 0
    for block in blocks:
        size, asked, state = block["size"], block["requested_size"], _STATES.get(block["state"])
        numbers = type(size) is type(asked) is int and size > 0 and asked >= 0
        if not numbers or state is None or block.get("address", end) != end:  # torch 2.0 has no address
            raise ValueError(f"has a broken block: {_what_is_wrong(block, end)}")
        end += size
        sizes.append(size)
        requests.append(asked)
        states.append(state)
        if state is ALLOCATED:
            allocated += size
            requested += asked
        elif state is AWAITING:
            awaiting += size
            requested += asked
    if end - address != total or not sizes or end > MOST:
        raise ValueError(f"has blocks of {end - address} bytes, but total_size is {shown(total)}")
    sums = (allocated, allocated + awaiting, requested)
    recorded = tuple(map(raw.get, _SUMS, sums))
    if recorded != sums:
        raise ValueError(f"has {', '.join(_SUMS)} of {shown(recorded)}, but its blocks add up to {sums}")
    expandable = raw.get("is_expandable", False)
    if type(expandable) is not bool:
        raise TypeError(f"is_expandable is {shown(expandable)}, neither true nor false")
    columns = tuple(sizes), tuple(requests), tuple(states)
    return Segment(device, address, stream, kind == "small", pool, expandable, *columns)


def _require_numbers(*numbers: Any) -> None:
    """bool is refused: no torch version writes one for a number."""
    for number in numbers:
        if type(number) is not int:
            raise TypeError(f"expected a whole number, found a {type(number).__name__}")
        if not 0 <= number <= MOST:
            raise ValueError("has a number outside 0 to 2^64")


def _what_is_wrong(block: Mapping[str, Any], end: int) -> str:
    if block.get("address", end) != end:
        return f"its address is {shown(block['address'])}, but the previous block ends at {end}"
    if block["state"] not in _STATES:
        return f"its state is {shown(block['state'])}"
    return f"its size is {shown(block['size'])}, its requested_size {shown(block['requested_size'])}"


def _refuse_overlap(segments: Iterable[Segment]) -> None:
    device, end = -1, 0
    for index, segment in enumerate(segments):
        if segment.device == device and segment.address < end:
            raise BadInput(
                f"segment {index} in order of address (device {device}, address {segment.address:#x}) "
                "overlaps the previous one: the snapshot is damaged; take a new one"
            )
        device, end = segment.device, segment.address + segment.size


def _broken(raw: Any, index: int, what: str) -> BadInput:
    where = f"segment {index}"
    if isinstance(raw, Mapping):
        device, address = raw.get("device"), raw.get("address")
        if type(device) is type(address) is int and min(device, address) >= 0 and max(device, address) <= MOST:
            where += f" (device {device}, address {address:#x})"
    return BadInput(f"{where} {what}: the snapshot is damaged; take a new one")
