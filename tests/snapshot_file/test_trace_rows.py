"""Traces read in columns: the same as entries read one by one, and nothing else is read this way."""

from __future__ import annotations

import gzip
import pickle
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufrag.errors import BadInput
from gpufrag.model.trace.columns import Rows
from gpufrag.snapshot_file import load, plain_pickle, trace_rows
from gpufrag.snapshot_file.profile import read_profiles
from staged_programs import MIB, Process, growing_cache, run

SNAPSHOTS = Path(__file__).parents[1] / "fixtures" / "snapshots"
RECORDED = ["default-0", "pools-streams", "torch-2.0", "train-varlen"]


def snapshot(entries: int = 40, **more: Any) -> dict[str, Any]:
    """Return a dump in torch's form: a new list of known frames for each allocation, texts that are not shared."""
    frames = [{"filename": "train.py", "line": line, "name": "step"} for line in range(5)]
    trace = []
    for number in range(entries):
        stack = frames[number % 4 :]
        for action in ("alloc", "free_requested", "free_completed"):
            metadata = "".join(["N", "/A"])
            trace.append(
                {"action": action, "addr": 512 * number + (1 << 46), "size": 512, "stream": 0, "time_us": 1 << 50}
                | {"compile_context": metadata, "frames": stack}
                | more
            )
    return {"segments": [], "device_traces": [trace, []], "allocator_settings": {}}


def whole(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Return a loaded value with entries instead of Rows and sorted keys; a damaged pickle can contain itself."""
    if id(value) in above:
        return "itself"
    above = (*above, id(value))
    if isinstance(value, dict):
        return {key: whole(value[key], above) for key in sorted(value, key=repr)}
    if isinstance(value, list) and any(isinstance(each, Rows) for each in value):
        value = [entry for each in value for entry in (each.entries() if isinstance(each, Rows) else [each])]
    return [whole(each, above) for each in value] if isinstance(value, list) else value


def profiles(path: Path, rows: bool) -> list[Any]:
    return [(found.profile, list(found.events), found.end) for found in read_profiles(load(path, rows=rows), {})]


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("more", [{}, {"pool_id": (0, 0)}, {"pool_id": (0, 3)}, {"user_metadata": "a step, named"}])
def test_entries_with_the_same_keys_become_rows(protocol: int, more: dict[str, Any]) -> None:
    expected = snapshot(400, **more)
    found = trace_rows.loads(pickle.dumps(expected, protocol))
    assert any(isinstance(item, Rows) for item in found["device_traces"][0])
    assert whole(found) == whole(expected)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_snapshot_is_read_in_both_ways(name: str) -> None:
    path = next(SNAPSHOTS.glob(f"{name}.pickle*"))
    data = path.read_bytes() if path.suffix == ".pickle" else gzip.decompress(path.read_bytes())
    found = trace_rows.loads(data)
    assert found is None or whole(found) == whole(plain_pickle.loads(data))
    assert profiles(path, rows=True) == profiles(path, rows=False)


def test_progress_ends_at_the_end_of_the_file() -> None:
    data, calls = pickle.dumps(snapshot(20_000)), list[tuple[int, int]]()
    trace_rows.loads(data, lambda done, total: calls.append((done, total)))
    assert len(calls) > 1
    assert calls == sorted(calls)
    assert calls[-1] == (len(data), len(data))


BYTES = b"}](\x94Nueas.h\x8cK\x86)\x88\x95"
"""Instructions, so that damage often makes another pickle."""


def shortened(name: str) -> bytes:
    dump = load(next(SNAPSHOTS.glob(f"{name}.pickle*")))
    traces = [trace[:50] for trace in dump["device_traces"]]
    return pickle.dumps({**dump, "segments": dump["segments"][:3], "device_traces": traces})


def damaged(pickled: bytes, chance: random.Random) -> bytes:
    found = bytearray(pickled)
    for _ in range(chance.choice((1, 1, 2))):
        at, other = (chance.randrange(2, len(found)) for _ in range(2))
        match chance.randrange(6):
            case 0:
                found[at] = chance.randrange(256)
            case 1:
                found[at] = chance.choice(BYTES)
            case 2:
                found.insert(at, chance.choice(BYTES))
            case 3:
                del found[at : at + chance.choice((1, 2, 5))]
            case 4:
                found[at], found[other] = found[other], found[at]
            case _:  # another value of the memo
                found[found.find(b"h", at) + 1] = chance.randrange(len(found) % 256 + 1)
    return bytes(found)


def slowly(pickled: bytes) -> Any:
    """Return what the reader reads without the C unpickler; a text if it refuses the pickle."""
    try:
        return plain_pickle._Machine(pickled).run()
    except (BadInput, IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error) as error:
        return f"refused: {error}"


@pytest.mark.parametrize("name", ["simulated", *RECORDED])
def test_damaged_pickle_has_the_same_value_in_all_readers(name: str) -> None:
    chance = random.Random(name)
    whole_pickle = pickle.dumps(snapshot(9)) if name == "simulated" else shortened(name)
    by_rows = 0
    for _ in range(300):
        pickled = damaged(whole_pickle, chance)
        fast, quick = trace_rows.loads(pickled), plain_pickle._quick(pickled)
        if fast is None and quick is None:
            continue
        expected = repr(whole(slowly(pickled)))
        assert quick is None or repr(whole(quick[0])) == expected
        assert fast is None or repr(whole(fast)) == expected
        by_rows += fast is not None
    assert by_rows > 20 or trace_rows.loads(whole_pickle) is None


def test_actions_that_are_not_shared_are_left_to_the_checked_reader() -> None:
    dump = snapshot()
    for entry in dump["device_traces"][0]:
        entry["action"] = entry["action"].encode().decode()
    assert trace_rows.loads(pickle.dumps(dump)) is None or whole(trace_rows.loads(pickle.dumps(dump))) == whole(dump)


def failing() -> dict[str, Any]:
    """A process that empties the cache, fails, and goes on."""
    process = Process()
    for line in range(9):
        process.free(process.malloc(64 * MIB, line), process.malloc(30 * MIB, 1))
        process.empty_cache()
    process.malloc(3 * MIB, 5)
    dump = process.snapshot()
    last = dump["device_traces"][0][-1]
    dump["device_traces"][0] += [
        {"action": "oom", "device_free": 5, "size": 1 << 40, "stream": 0, "time_us": last["time_us"], "frames": []},
        {**last, "action": "snapshot", "frames": []},
    ]
    return dump


@pytest.mark.parametrize("dump", [failing, lambda: run(growing_cache)])
def test_profile_is_the_same_from_rows(dump: Any, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(dump()))
    assert trace_rows.loads(path.read_bytes()) is not None
    assert profiles(path, rows=True) == profiles(path, rows=False)


@pytest.mark.parametrize(
    "program",
    [b"cos\nsystem\n0", b"\x8c\x02os\x8c\x06system\x930", b"NQ0", b"(ios\nsystem\n0", b"N}b", b"\x82\x010", b")R"],
    ids=["GLOBAL", "STACK_GLOBAL", "BINPERSID", "INST", "BUILD", "EXT1", "REDUCE"],
)
@pytest.mark.parametrize("where", ["first", "between", "last"])
def test_instructions_between_the_entries_are_checked(program: bytes, where: str, tmp_path: Path) -> None:
    data = pickle.dumps(snapshot(), 4)
    at = {"first": 2, "between": data.rindex(b"u}\x94(") + 1, "last": len(data) - 1}[where]
    data = data[:at] + program + data[at:]
    assert trace_rows.loads(data) is None
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(data)
    with pytest.raises(BadInput):
        load(path, rows=True)


def test_data_that_takes_too_much_memory_is_left_to_the_checked_reader() -> None:
    data = pickle.dumps({**snapshot(), "more": [[] for _ in range(300_000)]})
    assert trace_rows.loads(data) is None


@settings(max_examples=50)
@given(st.data())
def test_cut_off_pickle_has_no_rows(data: st.DataObject) -> None:
    pickled = pickle.dumps(snapshot(6), 4)
    assert trace_rows.loads(pickled[: data.draw(st.integers(0, len(pickled) - 1))]) is None


def test_rows_that_are_no_entries_are_refused_by_name(tmp_path: Path) -> None:
    broken = snapshot(40)
    for entry in broken["device_traces"][0]:
        entry["size"] = entry["action"]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(broken, 4))
    with pytest.raises(BadInput, match=r"event 0 \(alloc\) has an address, size, stream or pool"):
        read_profiles(load(path, rows=True), {})


@pytest.mark.parametrize("rows", [True, False])
def test_actions_that_are_dicts_are_refused(rows: bool, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(40, action={}), 4))
    with pytest.raises(BadInput, match="event 0 is not a trace entry of torch"):
        read_profiles(load(path, rows=rows), {})


def test_requests_beyond_63_bits_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(40, size=(1 << 64) - 1), 4))
    ((profile, *_),) = read_profiles(load(path, rows=True), {})
    assert "add up to more than 2^63 bytes" in profile.note


@pytest.mark.parametrize("damage", [{"frames": 1.5}, {"frames": ["f"]}, {"frames": [], "history": "h"}])
def test_block_whose_stack_has_another_form_is_refused(damage: dict[str, Any]) -> None:
    dump = repeated("lists of blocks")
    del dump["segments"][1:]
    dump["segments"][0]["blocks"][0] |= damage
    with pytest.raises(BadInput, match="stack of a block does not have torch's form"):
        read_profiles({**dump, "device_traces": []}, {})


def test_stack_that_is_no_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(40, frames=7), 4))
    with pytest.raises(BadInput, match="a stack of the trace is not a list of frames"):
        read_profiles(load(path, rows=True), {})


def test_stack_of_something_else_than_frames_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(40, frames=[7]), 4))
    ((profile, *_),) = read_profiles(load(path, rows=True), {})
    assert "a stack does not have torch's form" in profile.note


def test_stack_of_more_frames_than_the_bound_is_read(tmp_path: Path) -> None:
    deep = [{"filename": "train.py", "line": line, "name": "step"} for line in range(200)]
    dump = snapshot(40)
    for entry in dump["device_traces"][0][1::3]:
        entry["frames"] = [*deep]
    found = trace_rows.loads(pickle.dumps(dump, 4))
    assert found is None or whole(found) == whole(dump)


def test_overlapping_almost_entries_are_searched_up_to_the_bound_of_frames() -> None:
    overlapping = b"j}\x94(h" + b"jMxyh" * 4 + b"j]\x94(h" + b"jhahb"  # a reference to the memo by turns, or an entry
    almost = overlapping[1:] + overlapping * 20
    assert trace_rows.loads(b"\x80\x04}(\x8c\x0ddevice_traces](" + almost + b"eu.") is None
    value = re.compile(b"(?s)" + trace_rows._VALUE)
    longest = value.match(b"]\x94(" + b"ha" * 128 + b"e")
    assert longest is not None
    assert longest.end() == 3 + 256 + 1
    beyond = value.match(b"]\x94(" + b"ha" * 129 + b"e")
    assert beyond is not None
    assert beyond.end() == 2


def repeated(what: str) -> dict[str, Any]:
    """Return a dump whose pickle refers to one object twice."""
    dump = snapshot(40)
    trace = dump["device_traces"][0]
    blocks = [{"size": 512, "requested_size": 512, "state": "active_allocated", "frames": []}]
    sums = dict.fromkeys(("allocated_size", "active_size", "requested_size", "total_size"), 512)
    kind = {"device": 0, "stream": 0, "segment_type": "small", "blocks": blocks}
    segments = [{"address": place << 20, **kind, **sums} for place in (1, 2)]
    if what == "entries of a trace":
        trace.append(trace[-1])
    elif what == "traces":
        dump["device_traces"] = [trace, trace]
    elif what == "segments":
        dump["segments"] = [segments[0], segments[0]]
    else:
        dump["segments"] = segments
    return dump


@pytest.mark.parametrize("what", ["entries of a trace", "traces", "segments", "lists of blocks"])
@pytest.mark.parametrize("rows", [True, False])
def test_small_file_that_describes_a_lot_by_reference_is_refused(what: str, rows: bool, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(repeated(what), 4))
    with pytest.raises(BadInput, match=f"two of its {what} are one object|event 120 is not a trace entry"):
        read_profiles(load(path, rows=rows), {})


@pytest.mark.parametrize("key", ["segments", "device_traces"])
def test_more_devices_than_a_process_has_are_refused(key: str) -> None:
    block = {"size": 512, "requested_size": 512, "state": "active_allocated", "frames": []}
    sums = dict.fromkeys(("allocated_size", "active_size", "requested_size", "total_size"), 512)
    kind = {"address": 1 << 20, "stream": 0, "segment_type": "small", **sums}
    many: dict[str, list[Any]] = {
        "segments": [{"device": number, "blocks": [block], **kind} for number in range(129)],
        "device_traces": [[] for _ in range(129)],
    }
    with pytest.raises(BadInput, match="129 devices, more than 128"):
        read_profiles({"segments": [], "device_traces": [], key: many[key]}, {})
