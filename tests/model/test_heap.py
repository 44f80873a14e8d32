"""heap.parse: the snapshots of every torch from 2.0 on, and what it refuses."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import BadInput
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.heap import Block, Heap, parse
from gpufrag.model.settings import Settings
from gpufrag.snapshot_file.reading import load
from helpers import SNAPSHOTS, GoldenCase
from strategies import AWAITING, INACTIVE, JSON, LIVE, MIB, segment, snapshots

Raw = dict[str, Any]
BLOCKS = [(6 * MIB, LIVE), (10 * MIB, INACTIVE), (4 * MIB, AWAITING)]


def raw() -> Raw:
    return {"segments": [segment(PAGE_2, BLOCKS, waste=100), segment(PAGE_1, [(2 * MIB, LIVE)], segment_type="small")]}


PAGE_1, PAGE_2 = 0x7F00_0000_0000, 0x7F00_1000_0000

RECORDED_2_3 = {
    "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
    "max_split_size": 64 * MIB,
    "garbage_collection_threshold": 0.0,
    "expandable_segments": False,
    "pinned_num_register_threads": 1,
    "release_lock_on_cudamalloc": False,
    "pinned_use_cuda_host_register": False,
    "roundup_power2_divisions": {str(1 << interval): 0 for interval in range(16)},
}
SCHEMAS: dict[str, Raw] = {
    "2.1": {"device_traces": [[]]},
    "2.3": {"device_traces": [[]], "allocator_settings": RECORDED_2_3},
    "2.5": {"device_traces": [[]], "allocator_settings": RECORDED_2_3, "external_annotations": []},
    "2.9": {
        "device_traces": [[]],
        "allocator_settings": {**RECORDED_2_3, "graph_capture_record_stream_reuse": False},
        "external_annotations": [],
    },
    "2.14": {
        "device_traces": [[]],
        "allocator_settings": {**RECORDED_2_3, "max_round_threshold": 1 << 40, "max_cached_size": 1 << 40},
        "external_annotations": [],
        "host_segments": [],
        "host_traces": [],
    },
}
"""Keys around the segments, by the version that added them; the segments' own keys are those of 2.1."""


@pytest.mark.parametrize("version", SCHEMAS)
def test_every_schema_gives_the_same_heap(version: str) -> None:
    stand_in = Settings(max_split_size=64 * MIB)
    assert parse({**raw(), **SCHEMAS[version]}, stand_in) == parse(raw(), stand_in)


def test_list_of_segments_is_parsed() -> None:
    assert parse(raw()["segments"]) == parse(raw())


def test_recorded_settings_win_over_given_ones() -> None:
    heap = parse({**raw(), **SCHEMAS["2.3"]}, Settings(expandable_segments=True))
    assert heap.settings == Settings(max_split_size=64 * MIB)


def test_missing_settings_are_torchs_defaults() -> None:
    assert parse(raw()).settings == Settings()


def test_segments_are_sorted_and_blocks_adjacent() -> None:
    small, large = parse(raw()).segments
    assert (small.address, small.small, large.small) == (PAGE_1, True, False)
    assert list(large.blocks())[1:] == [
        Block(PAGE_2 + 6 * MIB, 10 * MIB, 10 * MIB - 100, INACTIVE),
        Block(PAGE_2 + 16 * MIB, 4 * MIB, 4 * MIB - 100, AWAITING),
    ]


def test_documented_state_of_waiting_block_is_parsed() -> None:
    broken = raw()
    broken["segments"][0]["blocks"][2]["state"] = "active_awaiting_free"
    assert parse(broken) == parse(raw())


def test_unknown_keys_are_ignored() -> None:
    newer = raw()
    newer["segments"][0] |= {"registration_counter": 3}
    newer["segments"][0]["blocks"][0] |= {"color": "red"}
    assert parse({**newer, "device_weather": "fine"}) == parse(raw())


def test_snapshot_of_torch_2_0_has_no_block_addresses() -> None:
    heap = parse(load(SNAPSHOTS / "torch-2.0.pickle"))
    found = measure(heap, Driver())
    assert (found.reserved, found.large.allocated, found.free_cached) == (2 * MIB, MIB, MIB)
    assert [block.address - 139637976727552 for block in heap.segments[0].blocks()] == [0, MIB]


def test_pool_id_from_json_is_parsed() -> None:
    listed = raw()
    listed["segments"][0]["segment_pool_id"] = [0, 3]
    assert parse(listed).segments[1].private


def test_heap_on_device_has_its_segments() -> None:
    both = raw()
    both["segments"][0]["device"] = 1
    heap = parse(both)
    assert heap.devices == (0, 1)
    assert [segment.address for segment in heap.on_device(1).segments] == [PAGE_2]


def test_empty_snapshot_is_an_empty_heap() -> None:
    assert parse({"segments": []}) == Heap(())


@pytest.mark.parametrize("name", sorted(path.name for path in SNAPSHOTS.glob("*.pickle.gz")))
def test_recorded_pickle_is_parsed(name: str) -> None:
    snapshot = load(SNAPSHOTS / name)
    heap = parse(snapshot)
    assert sum(len(segment.sizes) for segment in heap.segments) == sum(len(s["blocks"]) for s in snapshot["segments"])
    assert heap.settings.expandable_segments == name.startswith("exp")


def test_recorded_case_is_parsed(golden_case: GoldenCase) -> None:
    assert sum(s.size for s in golden_case.heap.segments) == golden_case.raw["stats"]["reserved_bytes.all.current"]


SEGMENT = ("segments", 0)


def block(index: int) -> tuple[str | int, ...]:
    return (*SEGMENT, "blocks", index)


BROKEN: dict[str, tuple[tuple[str | int, ...], Raw | str, str]] = {
    # what: (the place, its changes or the key that is missing, the message)
    "blocks too short": (SEGMENT, {"total_size": 22 * MIB}, "blocks of 20971520 bytes, but total_size is 23068672"),
    "no block": (SEGMENT, {"blocks": [], "total_size": 0}, "blocks of 0 bytes"),
    "a gap": (block(1), {"address": PAGE_2 + 7 * MIB}, "its address is .*, but the previous block ends at"),
    "an empty block": (block(1), {"size": 0}, "its size is 0"),
    "a negative block": (block(0), {"size": -(6 * MIB)}, "its size is -6291456"),
    "a size that is text": (block(0), {"size": "6291456"}, "its size is '6291456'"),
    "a size that is a bool": (block(0), {"size": True}, "its size is True"),
    "a size that is a float": (block(0), {"size": 6291456.0}, "its size is 6291456.0"),
    "a request that is no number": (block(0), {"requested_size": None}, "its requested_size None"),
    "a negative request": (block(1), {"requested_size": -1}, "its requested_size -1"),
    "a request beyond its block": (block(0), {"requested_size": 7 * MIB}, "has allocated_size, active_size"),
    "an unknown state": (block(2), {"state": "resting"}, "its state is 'resting'"),
    "a state that is a list": (block(2), {"state": ["inactive"]}, "does not have torch's form"),
    "an unknown segment type": (SEGMENT, {"segment_type": "medium"}, "segment_type 'medium' .*, not values of torch"),
    "half a pool id": (SEGMENT, {"segment_pool_id": (0,)}, r"segment_pool_id \(0,\), not values of torch"),
    "a pool id of text": (SEGMENT, {"segment_pool_id": "ab"}, "expected a whole number, found a str"),
    "a wrong sum": (SEGMENT, {"allocated_size": 1}, r"of \(1, 10485760, .*add up to \(6291456, 10485760"),
    "a wrong sum of requests": (SEGMENT, {"requested_size": 1}, "add up to"),
    "a negative device": (SEGMENT, {"device": -1}, "outside 0 to 2"),
    "an address beyond 64 bits": (SEGMENT, {"address": 1 << 64}, "outside 0 to 2"),
    "blocks that are no list": (SEGMENT, {"blocks": 3}, "does not have torch's form"),
    "a block that is text": (SEGMENT, {"blocks": ["a"]}, "does not have torch's form"),
    "a bool that is text": (SEGMENT, {"is_expandable": "no"}, "is_expandable is 'no', neither"),
    "no blocks": (SEGMENT, "blocks", "has no key 'blocks'"),
    "no stream": (SEGMENT, "stream", "has no key 'stream'"),
    "no size": (block(1), "size", "has no key 'size'"),
    "no state": (block(1), "state", "has no key 'state'"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_segment_is_refused(what: str) -> None:
    place, change, message = BROKEN[what]
    snapshot = raw()
    record = reduce(getitem, place, snapshot)
    if isinstance(change, str):
        del record[change]
    else:
        record.update(change)
    with pytest.raises(BadInput, match=message) as refusal:
        parse(snapshot)
    assert str(refusal.value).startswith("segment 0")
    assert str(refusal.value).endswith("the snapshot is damaged; take a new one")


@pytest.mark.parametrize(
    "key", ["device", "address", "total_size", "stream", "allocated_size", "size", "requested_size"]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_number_of_5000_digits_is_refused(key: str, sign: int) -> None:
    """Python refuses to print it: the message must not fail too."""
    snapshot = raw()
    place = snapshot["segments"][0]
    (place if key in place else place["blocks"][0])[key] = sign * 10**5000
    with pytest.raises(BadInput, match="segment 0") as refusal:
        parse(snapshot)
    assert len(str(refusal.value)) < 1000


def test_broken_segment_is_named_by_device_and_address() -> None:
    snapshot = raw()
    snapshot["segments"][0]["total_size"] += 512
    with pytest.raises(BadInput, match=r"segment 0 \(device 0, address 0x7f0010000000\)"):
        parse(snapshot)


def test_overlapping_segments_are_refused() -> None:
    twice = raw()["segments"] * 2
    with pytest.raises(BadInput, match=r"address 0x7f0000000000\) overlaps"):
        parse(twice)


def test_same_address_on_two_devices_is_no_overlap() -> None:
    first, second = raw()["segments"], raw()["segments"]
    for each in second:
        each["device"] = 1
    assert len(parse(first + second).segments) == 4


@pytest.mark.parametrize("snapshot", [{}, {"segments": {}}, {"segments": None}, {"segment": []}, "segments", None, 5])
def test_other_data_is_refused(snapshot: Any) -> None:
    with pytest.raises(BadInput, match="not a memory snapshot"):
        parse(snapshot)


@given(JSON)
def test_arbitrary_json_is_refused(value: Any) -> None:
    for snapshot in (value, {"segments": value}, {"segments": [value]}):
        parse_or_refuse(snapshot)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of keys to every place in nested dicts and lists."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


@given(snapshots(roundup_power2_divisions={"1": 0}), st.data())
def test_changed_snapshot_is_parsed_or_refused(snapshot: Raw, data: st.DataObject) -> None:
    changed = copy.deepcopy(snapshot)
    *way, last = data.draw(st.sampled_from(list(places(changed))))
    parent = reduce(getitem, way, changed)
    if data.draw(st.booleans()):
        del parent[last]
    else:
        parent[last] = data.draw(JSON)
    parse_or_refuse(changed)


def parse_or_refuse(snapshot: Any) -> None:
    """What is parsed can also be measured."""
    try:
        heap = parse(snapshot)
    except BadInput as error:
        refusal = str(error)
        assert len(refusal.splitlines()) == 1
        assert len(refusal) < 1000
    else:
        for device in heap.devices:
            measure(heap.on_device(device), Driver(free=1 << 30, size=1 << 37, limit=1 << 35))
