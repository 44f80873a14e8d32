"""Reads a pickle of plain data: dict, list, tuple, str, int, float, bool and None.

A pickle is a program that Python's own unpickler executes. This reader accepts the 25 instructions that a dumped
snapshot contains; none of them names or calls anything. It also refuses harmful plain data: huge numbers,
tuples in tuples (hashing them as dict keys takes forever), lengths beyond the end of the file, and more than
COST_LIMIT bytes of memory per byte of the pickle.

A pickle of these instructions alone, in the forms of torch's dumps, goes to the C unpickler: three times as fast.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import BadInput

MAX_INTEGER_BYTES = 9  # 64 bits and a sign
_SCALARS = (str, int, float, bool, type(None))
COST_LIMIT = 14
"""Bytes of memory per byte of the pickle, as estimated; a real snapshot takes about 10, numbers 19 at most."""
TOO_COSTLY = f"its data takes more than {COST_LIMIT} times its size in memory, which no snapshot does"
_LIST, _DICT, _FIRST_ITEM, _ITEM, _TUPLE, _TEXT, _SLOT = 72, 64, 216, 48, 64, 88, 24
"""Estimated bytes of an empty list or dict, the first item of a dict and each after the fifth, a tuple, a short text, a
constant."""
_FREE_ITEMS = 5  # of a dict: the memory for the first item holds five
_COSTS = {b"]": _LIST, b"}": _DICT + _FIRST_ITEM, b"\x8c": _TEXT} | dict.fromkeys((b"N", b")", b"\x88", b"\x89"), _SLOT)
QUICK_LIMIT = 9.5
"""Bytes of memory per byte, without a dict's further items: at most 20 with those and with numbers."""
NUMBER = rb"K.|M..|J.{4}|\x8a(?:%s|\x00|\x09.{8}\x00)" % b"|".join(
    b"%c.{%d}" % (n, n) for n in (7, 6, 8, 5, 4, 3, 2, 1)
)
_SHORT_TEXT = b"|".join(rb"\x%02x.{%d}" % (n, n) for n in range(256))
_PLAIN = re.compile(
    rb"(?s)(?:[}\]aes\x94]|h.|u(?!\.)|\((?![eu])|[)N\x88\x89](?!\x94)"
    rb"|\x8c(?:%s)|(?:%s)(?:%s)\x86|%s|j.{4}|G.{8}){1,2000}" % (_SHORT_TEXT, NUMBER, NUMBER, NUMBER)
)
"""Instructions without a condition of their own; a tuple only in the form of a pool id, two numbers.

Two things are not here, nor with a frame between: a mark without items, since Python then accepts any container, and
constants in the memo, for the sake of trace_rows.
"""
_FRAME = re.compile(rb"(?s)(?<!\()\x95.{8}(?![\x94\x95])|\x95.{8}(?![\x94\x95eu])")
BOTTOM = b"\x80\x04(C\x00"
"""Begins a pickle whose value is on a stack of its own. No instruction here makes bytes, so these mark its bottom."""
PICKLE_ERRORS = (
    pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, LookupError, TypeError, ValueError,
)  # fmt: skip


class _Machine:
    """The state of one reading: its position, the stack, the memo, and the memory spent on containers."""

    def __init__(self, data: bytes | bytearray) -> None:
        self.data = data
        self.left = COST_LIMIT * len(data) + (1 << 20)
        self.at = 0
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # stacks below an open mark
        self.memo: list[Any] = []

    def run(self) -> Any:
        data, instructions = self.data, _INSTRUCTIONS
        while (code := data[self.at]) != _STOP:
            self.at += 1
            instructions[code](self)
        (value,) = self.stack
        return value

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise BadInput(TOO_COSTLY)

    def take(self, count: int) -> bytes | bytearray:
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise IndexError(self.at)
        return self.data[start : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def push(self, value: object, cost: int = 0) -> None:
        self.spend(cost)
        self.stack.append(value)

    def marked(self) -> list[Any]:
        """Pop what was pushed since the last mark."""
        found, self.stack = self.stack, self.outer.pop()
        return found

    def popped(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError(count)
        found = self.stack[-count:]
        del self.stack[-count:]
        return found

    def open_container(self, kind: type) -> Any:
        """Return the list or dict to put items into."""
        if type(found := self.stack[-1]) is not kind:
            raise TypeError(f"no {kind.__name__} to put into")
        return found


def loads(data: bytes | bytearray) -> Any:
    """Return the value of a pickle (protocol 4 or newer). Raises BadInput without the file's name."""
    if quick := _quick(data):
        return quick[0]
    machine = _Machine(data)
    try:
        return machine.run()
    except KeyError:
        code = data[machine.at - 1]
        raise BadInput(
            f"it holds more than plain data, so loading it could run code (instruction {code:#04x} at byte "
            f"{machine.at - 1})"
        ) from None
    except (IndexError, ValueError, TypeError, AttributeError, struct.error):
        if machine.at >= len(data):
            raise BadInput("it is cut off in the middle") from None
        raise BadInput(f"it is damaged near byte {machine.at}") from None


def _quick(data: bytes | bytearray) -> tuple[Any] | None:
    """Return what the C unpickler reads, in a tuple. None if an instruction is not harmless in any order, the memory
    could be filled, or the pickle is damaged."""
    if not data.startswith((b"\x80\x04", b"\x80\x05")) or cost_of(data) > QUICK_LIMIT * len(data):
        return None
    try:
        pieces, end = harmless(memoryview(data), 2)
        program = b"".join((BOTTOM, *pieces, end[:-1], b"t."))
        bottom, value = pickle.loads(program)  # noqa: S301 (every instruction was checked)
    except PICKLE_ERRORS:
        return None
    return (value,) if end and type(bottom) is bytes else None


def cost_of(data: bytes | bytearray) -> int:
    """Return the estimated bytes of memory of what a pickle holds, without a dict's further items and numbers."""
    return sum(cost * data.count(instruction) for instruction, cost in _COSTS.items())  # bytes of numbers count too


def harmless(data: bytes | memoryview, begin: int = 0) -> tuple[list[bytes | memoryview], bytes]:
    """Return the instructions between frames, up to the end of the data or the pickle, and what ends it: `.` or `u.`.

    Raises ValueError if one is not harmless in any order, or cut off.
    """
    at, size, pieces = begin, len(data), []
    while at < size:
        if (found := _PLAIN.match(data, at)) is not None:
            at = found.end()
        elif data[at] == _LONG_TEXT:
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        elif (found := _FRAME.match(data, at)) is not None:
            pieces.append(data[begin:at])
            begin = at = found.end()
        elif data[at] == _STOP or data[at : at + 2] == b"u.":
            return [*pieces, data[begin:at]], b"." if data[at] == _STOP else b"u."
        else:
            raise ValueError(f"instruction {data[at]:#04x}")
    if at > size:
        raise ValueError("cut off")
    return [*pieces, data[begin:]], b""


Instruction = Callable[[_Machine], object]


def _protocol(machine: _Machine) -> None:
    if machine.number(1) < 4:  # older ones choose their memo's indexes, up to 2^32 for one entry
        raise BadInput("its pickle protocol is older than 4; write it with pickle.dump(…, protocol=4)")


def _mark(machine: _Machine) -> None:
    machine.spend(_LIST)
    machine.outer.append(machine.stack)
    machine.stack = []


def _get(size: int) -> Instruction:
    return lambda machine: machine.push(machine.memo[machine.number(size)])


def _constant(value: object) -> Instruction:
    return lambda machine: machine.push(value, _SLOT)


def _unsigned(size: int) -> Instruction:
    return lambda machine: machine.push(machine.number(size))


def _signed(machine: _Machine) -> None:
    machine.push(int.from_bytes(machine.take(4), "little", signed=True))


def _long(machine: _Machine) -> None:
    size = machine.number(1)
    if size > MAX_INTEGER_BYTES:
        raise BadInput(f"it holds a number of {size} bytes")
    number = int.from_bytes(machine.take(size), "little", signed=True)
    if number.bit_length() > 64:
        raise BadInput("it holds a number beyond 64 bits")
    machine.push(number)


def _text(size: int) -> Instruction:
    """Read a string whose length has `size` bytes. Lone surrogates are valid: file names can have them."""
    return lambda machine: machine.push(machine.take(machine.number(size)).decode("utf-8", "surrogatepass"), _TEXT)


def _tuple_of(size: int) -> Instruction:
    return lambda machine: _push_tuple(machine, machine.popped(size), _TUPLE)


def _tuple(machine: _Machine) -> None:
    items = machine.marked()
    _push_tuple(machine, items, _TUPLE + 8 * len(items))


def _push_tuple(machine: _Machine, items: list[Any], cost: int) -> None:
    if not all(isinstance(item, _SCALARS) for item in items):
        raise BadInput("it holds a tuple of more than numbers and text")
    machine.push(tuple(items), cost)


def _append(machine: _Machine, items: list[Any]) -> None:
    machine.open_container(list).extend(items)


def _set_items(machine: _Machine, items: list[Any]) -> None:
    if len(items) % 2:
        raise ValueError("a key without a value")
    pairs = zip(items[::2], items[1::2])
    if type(found := machine.stack[-1]) is list:  # Python accepts this too
        for index, value in pairs:
            found[index] = value
        return
    found = machine.open_container(dict)
    machine.spend(_items_cost(len(found) + len(items) // 2) - _items_cost(len(found)))
    found.update(pairs)


def _items_cost(count: int) -> int:
    return _FIRST_ITEM + _ITEM * max(0, count - _FREE_ITEMS) if count else 0


_STOP, _LONG_TEXT = ord("."), ord("X")
_INSTRUCTIONS: Mapping[int, Instruction] = {
    0x80: _protocol,
    0x95: lambda machine: machine.take(8),  # the length of a frame
    ord("("): _mark,
    0x94: lambda machine: machine.memo.append(machine.stack[-1]),
    ord("h"): _get(1),
    ord("j"): _get(4),
    ord("N"): _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    ord("K"): _unsigned(1),
    ord("M"): _unsigned(2),
    ord("J"): _signed,
    0x8A: _long,
    ord("G"): lambda machine: machine.push(*struct.unpack(">d", machine.take(8))),
    0x8C: _text(1),
    ord("X"): _text(4),
    ord("}"): lambda machine: machine.push({}, _DICT),
    ord("]"): lambda machine: machine.push([], _LIST),
    ord(")"): _constant(()),
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
    ord("t"): _tuple,
    ord("a"): lambda machine: _append(machine, machine.popped(1)),
    ord("e"): lambda machine: _append(machine, machine.marked()),
    ord("s"): lambda machine: _set_items(machine, machine.popped(2)),
    ord("u"): lambda machine: _set_items(machine, machine.marked()),
}
