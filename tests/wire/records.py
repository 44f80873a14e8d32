"""Any record of a dataclass, by the annotations of its fields, and damage to an encoded one."""

import json
import types
import typing
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from gpufrag.errors import BadInput
from gpufrag.model.fragmentation import SIZE_BOUNDS
from strategies import JSON

NUMBERS = st.integers(0, (1 << 64) - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: NUMBERS,
    float: st.floats(0, 1 << 40, allow_nan=False),
    str: TEXTS,
    list[int]: st.lists(NUMBERS, min_size=len(SIZE_BOUNDS) + 1, max_size=len(SIZE_BOUNDS) + 1),
}


def any_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of an annotated type as the codec reads it; `schema` is 1."""
    if kind in LEAVES:
        return LEAVES[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return any_of(arguments[0])
    if origin is types.UnionType:
        return st.none() | any_of(arguments[0])
    if origin is tuple:
        return st.lists(any_of(arguments[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(TEXTS, any_of(arguments[1]), max_size=2)
    fields = typing.get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: st.just(1) if name == "schema" else any_of(hint) for name, hint in fields.items()})


@st.composite
def damaged(draw: st.DrawFn, encoded: bytes) -> bytes:
    """The record with another value under one of its keys, cut off, or with another byte."""
    raw = json.loads(encoded)
    records = [raw, *(entry for entry in raw.values() if isinstance(entry, dict)), *raw.get("devices", ())]
    record = draw(st.sampled_from([entry for entry in records if entry]))
    record[draw(st.sampled_from(sorted(record)))] = draw(JSON)
    place = draw(st.integers(0, len(encoded) - 1))
    return draw(
        st.just(json.dumps(raw).encode())
        | st.just(encoded[:place])
        | st.integers(0, 255).map(lambda byte: encoded[:place] + bytes([byte]) + encoded[place + 1 :])
    )


def assert_read_or_refused(data: bytes, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> None:
    """What is read can be written again, so that it can be served; a refusal is one line."""
    try:
        record = decode(data)
    except BadInput as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
    else:
        assert decode(encode(record)) == record
