"""The allocator's heap at one moment, and the only place that knows torch's names for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from ..errors import BadInput
from .settings import Settings, parse_recorded

ALLOCATED = "active_allocated"
AWAITING = "active_pending_free"  # freed by its owner, waits for an event of a stream
INACTIVE = "inactive"
_STATES = {ALLOCATED: ALLOCATED, AWAITING: AWAITING, INACTIVE: INACTIVE, "active_awaiting_free": AWAITING}
DEFAULT_POOL = (0, 0)


class Block(NamedTuple):
    """One block: bytes `address` to `address + size`; `requested` is what its owner asked for."""

    address: int
    size: int
    requested: int
    state: str


class Segment(NamedTuple):
    """One cudaMalloc, or one contiguous mapped range of an expandable segment.

    Blocks are kept as columns of equal length, in the order of their addresses: a heap of 100,000 blocks is
    read inside somebody's training process, where columns are an order of magnitude cheaper than objects.
    `requested` is stale on inactive blocks (torch does not reset it).
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
        """Bytes of the whole segment."""
        return sum(self.sizes)

    @property
    def private(self) -> bool:
        """Whether it belongs to a CUDA graph or a MemPool, which nobody else can allocate from."""
        return self.pool != DEFAULT_POOL

    def blocks(self) -> Iterator[Block]:
        """The blocks one by one, for code that reads and does not count."""
        addresses = accumulate(self.sizes, initial=self.address)
        return map(Block, addresses, self.sizes, self.requested, self.states)


@dataclass(frozen=True)
class Heap:
    """Every segment of a process's allocator, in the order of device and address, and its settings."""

    segments: tuple[Segment, ...]
    settings: Settings = Settings()

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that hold memory, as the process numbers them."""
        return tuple(sorted({segment.device for segment in self.segments}))

    def on_device(self, device: int) -> Heap:
        """The same heap, narrowed to one device."""
        return Heap(tuple(s for s in self.segments if s.device == device), self.settings)


def parse(snapshot: Mapping[str, Any] | Sequence[Any], settings: Settings | None = None) -> Heap:
    """Torch's snapshot (2.1 and newer; the dict, or its list of segments alone) as a Heap.

    `settings` stand in where the snapshot has none (torch < 2.3, or `memory_snapshot()`, which returns only the
    segments). Unknown keys are passed over. Raises BadInput, naming the segment, where a key is missing, a value
    is not of its type, the blocks do not tile their segment, or sizes do not add up.
    """
    recorded: Any = None
    raw_segments: Any = snapshot
    if isinstance(snapshot, Mapping):
        if "segments" not in snapshot:
            raise BadInput("not a memory snapshot: it has no key 'segments' (take it with torch.cuda.memory._snapshot())")
        raw_segments = snapshot["segments"]
        recorded = snapshot.get("allocator_settings")
    if not isinstance(raw_segments, (list, tuple)):
        raise BadInput(f"not a memory snapshot: its segments are a {type(raw_segments).__name__}, not a list")
    if isinstance(recorded, Mapping) and recorded:
        settings = parse_recorded(recorded)
    segments = [_parse_segment(raw, index) for index, raw in enumerate(raw_segments)]
    segments.sort(key=_by_address)
    _refuse_overlap(segments)
    return Heap(tuple(segments), settings or Settings())


def _by_address(segment: Segment) -> tuple[int, int]:
    return segment.device, segment.address


def _parse_segment(raw: Any, index: int) -> Segment:
    try:
        return _checked_segment(raw)
    except KeyError as error:
        raise _broken(raw, index, f"has no key {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise _broken(raw, index, str(error)) from None


def _checked_segment(raw: Mapping[str, Any]) -> Segment:
    """One raw segment; raises KeyError, TypeError or ValueError for what is wrong with it."""
    blocks = raw["blocks"]
    sizes = tuple([block["size"] for block in blocks])
    requested = tuple([block["requested_size"] for block in blocks])
    states = tuple([_STATES.get(block["state"], "") for block in blocks])
    pool = tuple(raw.get("segment_pool_id", DEFAULT_POOL))
    device, address, total, stream = raw["device"], raw["address"], raw["total_size"], raw["stream"]
    _require_ints([device, address, total, stream, *pool, *requested], least=0)
    _require_ints(sizes, least=1)
    if "" in states or raw["segment_type"] not in ("small", "large") or len(pool) != 2:
        _refuse_names(raw)
    addresses = list(accumulate(sizes, initial=address))
    if addresses.pop() != address + total:
        raise ValueError(f"holds blocks of {sum(sizes)} bytes but says total_size {total}")
    if [block.get("address", at) for block, at in zip(blocks, addresses)] != addresses:
        raise ValueError("has blocks that do not tile it: an address is not the end of the block before")
    expandable = bool(raw.get("is_expandable", False))
    small = raw["segment_type"] == "small"
    segment = Segment(device, address, stream, small, pool, expandable, sizes, requested, states)
    _require_sums(raw, segment)
    return segment


def _require_ints(values: Sequence[Any], least: int) -> None:
    """bool is refused too: a snapshot in which a size is True has been through the wrong hands."""
    if kinds := set(map(type, values)) - {int}:
        raise TypeError(f"has a {kinds.pop().__name__} where a whole number must be")
    if values and min(values) < least:
        raise ValueError(f"has a size or number below {least}: {min(values)}")


def _refuse_names(raw: Mapping[str, Any]) -> None:
    for block in raw["blocks"]:
        if block["state"] not in _STATES:
            raise ValueError(f"has a block in the unknown state {block['state']!r}")
    if raw["segment_type"] not in ("small", "large"):
        raise ValueError(f"has the unknown segment_type {raw['segment_type']!r}")
    raise ValueError(f"has the segment_pool_id {raw['segment_pool_id']!r}, which is no pair")


def _require_sums(raw: Mapping[str, Any], segment: Segment) -> None:
    """Torch's own sums of a segment must be those of its blocks."""
    sizes, requested, states = segment.sizes, segment.requested, segment.states
    allocated = sum([size for size, state in zip(sizes, states) if state is ALLOCATED])
    awaiting = sum([size for size, state in zip(sizes, states) if state is AWAITING])
    asked = sum([size for size, state in zip(requested, states) if state is not INACTIVE])
    found = (allocated, allocated + awaiting, asked)
    said = (raw.get("allocated_size", found[0]), raw.get("active_size", found[1]), raw.get("requested_size", asked))
    if said != found:
        raise ValueError(f"says allocated, active, requested are {said} but its blocks add up to {found}")


def _refuse_overlap(segments: Iterable[Segment]) -> None:
    device, end = -1, 0
    for index, segment in enumerate(segments):
        if segment.device == device and segment.address < end:
            raise BadInput(
                f"segment {index} in order of address (device {device}, address {segment.address:#x}) "
                "overlaps the one before it: the snapshot is broken, take a new one"
            )
        device, end = segment.device, segment.address + segment.size


def _broken(raw: Any, index: int, what: str) -> BadInput:
    where = f"segment {index}"
    if isinstance(raw, Mapping) and isinstance(raw.get("address"), int):
        where += f" (device {raw.get('device')}, address {raw['address']:#x})"
    return BadInput(f"{where} {what}: the snapshot is broken, take a new one")
