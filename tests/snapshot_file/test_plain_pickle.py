"""The plain pickle reader: equal to pickle.loads on plain data, a refusal for everything else."""

import contextlib
import os
import pickle
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufrag.errors import BadInput
from gpufrag.snapshot_file.plain_pickle import loads

FEW = settings(max_examples=50)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=9)
)
KEYS = st.text(max_size=9) | st.integers(-(2**63), 2**64 - 1)
PLAIN = st.recursive(
    SCALARS | st.lists(SCALARS, max_size=6).map(tuple),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@FEW
@given(PLAIN, st.sampled_from([4, 5]))
def test_plain_data_is_read(value, protocol):
    assert loads(pickle.dumps(value, protocol)) == value


def test_shared_values_stay_shared():
    frames = [{"name": "f"}]
    first, second = loads(pickle.dumps([frames, frames], 4))
    assert first is second


def test_many_shared_values_and_long_text_are_read():
    many = [f"{i}" * 200 for i in range(1000)]
    assert loads(pickle.dumps([many, many[::-1]], 4)) == [many, many[::-1]]


class Reduces:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


class Plain:
    pass


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize(
    "value",
    [
        Reduces(os.system, ("touch hacked",)),
        Reduces(getattr, ({}, "get")),
        Plain(),
        Plain,
        os.path.join,
        {1, 2},
        frozenset({1}),
        b"bytes",
        bytearray(b"bytes"),
        1j,
        ValueError("x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_objects_are_refused_without_running(value, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="more than plain data"):
        loads(pickle.dumps({"segments": [value]}, protocol))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'id'\ntR.",
        b"\x8c\x02os\x8c\x06system\x93.",
        b"\x82\x01.",
        b"Psomething\n.",
        b"\x8c\x02idQ.",
        b"(ios\nsystem\n.",
        b"}(\x8c\x01a\x8c\x01bub.",
        b"\x97.",
    ],
    ids=["GLOBAL", "STACK_GLOBAL", "EXT1", "PERSID", "BINPERSID", "INST", "BUILD", "NEXT_BUFFER"],
)
def test_no_instruction_names_or_calls_anything(program):
    with pytest.raises(BadInput, match="more than plain data"):
        loads(b"\x80\x04" + program)


LENGTH = "cut off|damaged|more than plain data"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps({"segments": []}, 2), r"older than 4; write it with pickle\.dump\(…, protocol=4\)"),
        (b"\x80\x04]r\xff\xff\xff\xff.", "more than plain data"),  # a distant entry of the memo
        (b"\x80\x04\x8b\xff\xff\xff\x7f1.", "more than plain data"),  # LONG4
        (b"\x80\x04\x8a\xff" + b"\x01" * 255 + b".", "number of 255 bytes"),
        *((b"\x80\x04" + claim + b"abc.", LENGTH) for claim in (b"X\xff\xff\xff\xff", b"\x8d" + b"\xff" * 8)),
        *((b"\x80\x04" + claim + b"\xff" * 8 + b"abc.", LENGTH) for claim in (b"\x96", b"\x95")),
        *((pickle.dumps({"size": n}, 4), "a number beyond 64 bits") for n in (1 << 64, -(1 << 64), 10**18 * 37)),
    ],
)
def test_old_or_huge_claim_is_refused(data, message):
    with pytest.raises(BadInput, match=message):
        loads(data)


def test_huge_frame_is_no_error():
    """Python's own unpickler raises OverflowError for the length of this frame."""
    assert loads(b"\x80\x04\x95" + b"\xff" * 8 + b"K\x07.") == 7


def test_tuple_of_tuples_is_refused():
    """The hash of such a key takes 2^60 steps."""
    nest = b"K\x01K\x01\x86\x94" + b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86\x94" for i in range(60))
    with pytest.raises(BadInput, match="tuple of more than numbers and text"):
        loads(b"\x80\x04}(" + nest + b"K\x01u.")


def test_nested_shared_lists_take_little_memory():
    laughs = b"".join(b"](h" + bytes([i]) + b"h" + bytes([i]) + b"e\x94" for i in range(60))
    value = loads(b"\x80\x04](]\x94" + laughs + b"e.")
    assert value[60][0] is value[60][1] is value[59]


def test_deep_nesting_is_read_and_freed():
    depth = 20_000
    assert loads(b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b".") != []


@FEW
@given(PLAIN, st.data())
def test_cut_off_pickle_is_refused(value, data):
    whole = pickle.dumps(value, 4)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(BadInput):
        loads(whole[:cut])


def _refusal(data):
    """Return the refusal; None if the data is a pickle by chance."""
    try:
        loads(data)
    except BadInput as error:
        return str(error)
    return None


@given(st.binary(max_size=200))
def test_noise_is_read_or_refused(noise):
    assert "\n" not in (_refusal(b"\x80\x04" + noise) or "")


@FEW
@given(PLAIN, st.data())
def test_flipped_byte_is_read_or_refused(value, data):
    damaged = bytearray(pickle.dumps(value, 4))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    assert "\n" not in (_refusal(bytes(damaged)) or "")


@pytest.mark.parametrize(
    "program", [b".", b"NN.", b"K\x01a.", b"]K\x01s.", b"e.", b"h\x00.", b"}(K\x01u.", b"NNa.", b"NNNs.", b"}]K\x01s."]
)
def test_impossible_program_is_refused(program):
    with pytest.raises(BadInput, match=r"damaged|cut off"):
        loads(b"\x80\x04" + struct.pack("<BQ", 0x95, 9) + program)


@pytest.mark.parametrize("framed", [False, True])
def test_many_small_blocks_are_read(framed):
    """Blocks of torch's form, whose dicts take ten times their part of the pickle."""
    frames = [{"filename": "train.py", "line": 1, "name": "f"}]
    blocks = [
        {"address": (1 << 46) + 512 * n, "size": 512, "requested_size": 500, "state": "active", "frames": own}
        for n in range(40_000)
        for own in [frames if framed else []]
    ]
    assert loads(pickle.dumps(blocks)) == blocks


@pytest.mark.parametrize("keys", [1, 5, 6, 11, 22])
@pytest.mark.parametrize("number", [300, 1 << 20])
def test_memory_of_dicts_is_bounded(keys, number):
    data = pickle.dumps([dict.fromkeys(range(keys), 0) | {0: number + n} for n in range(100_000 // keys)])
    tracemalloc.start()
    try:
        with contextlib.suppress(BadInput):
            loads(data)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(data) + (1 << 20)
    finally:
        tracemalloc.stop()
