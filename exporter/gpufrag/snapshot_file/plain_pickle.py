"""Reads a pickle of plain data: dict, list, tuple, str, int, float, bool and None. Nothing else can be in it.

A pickle is a program, and Python's own machine for it runs what it is told to. This machine has no instruction
that names, calls or builds anything: it knows those 25 that a dumped snapshot consists of. What remains to be
feared of plain data is refused as well: huge numbers, tuples in tuples (as keys of a dict their hash takes
forever), claims of sizes that the file does not have. Memory stays proportional to the length of the data.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import BadInput

MAX_INTEGER_BYTES = 9  # 64 bits and a sign
_index = struct.Struct("<I").unpack_from
_SCALARS = (str, int, float, bool, type(None))


class _Machine:
    """The state of one reading: where it is, what is on the stack, what was put aside for later use."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # stacks that wait for the matching end of a mark
        self.memo: list[Any] = []

    def run(self) -> Any:
        data, instructions = self.data, _INSTRUCTIONS
        while (code := data[self.at]) != _STOP:
            self.at += 1
            instructions[code](self)
        (value,) = self.stack
        return value

    def take(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise IndexError(self.at)
        return self.data[start : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def marked(self) -> list[Any]:
        """What was pushed since the last mark."""
        found, self.stack = self.stack, self.outer.pop()
        return found


def loads(data: bytes) -> Any:
    """The value of a pickle (protocol 4 or newer). Raises BadInput; the text says what is wrong, not where."""
    machine = _Machine(data)
    try:
        return machine.run()
    except KeyError:
        code = data[machine.at - 1]
        raise BadInput(f"it holds more than plain data (instruction {code:#04x} at byte {machine.at - 1})") from None
    except (IndexError, ValueError, TypeError, AttributeError, struct.error):
        if machine.at >= len(data):
            raise BadInput("it is cut off in the middle") from None
        raise BadInput(f"it is damaged near byte {machine.at}") from None


def _protocol(machine: _Machine) -> None:
    if machine.number(1) < 4:  # older ones number their memo as they like, up to 2^32 for one entry
        raise BadInput("it has a pickle protocol older than 4; write it with pickle.dump(…, protocol=4)")


def _frame(machine: _Machine) -> None:
    machine.take(8)


def _mark(machine: _Machine) -> None:
    machine.outer.append(machine.stack)
    machine.stack = []


def _memoize(machine: _Machine) -> None:
    machine.memo.append(machine.stack[-1])


def _get(machine: _Machine) -> None:
    machine.stack.append(machine.memo[machine.data[machine.at]])
    machine.at += 1


def _long_get(machine: _Machine) -> None:
    machine.stack.append(machine.memo[_index(machine.data, machine.at)[0]])
    machine.at += 4


def _constant(value: object) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value)


def _unsigned(size: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(machine.number(size))


def _signed(machine: _Machine) -> None:
    machine.stack.append(int.from_bytes(machine.take(4), "little", signed=True))


def _long(machine: _Machine) -> None:
    size = machine.number(1)
    if size > MAX_INTEGER_BYTES:
        raise BadInput(f"it holds a number of {size} bytes")
    number = int.from_bytes(machine.take(size), "little", signed=True)
    if number.bit_length() > 64:
        raise BadInput("it holds a number beyond 64 bits")
    machine.stack.append(number)


def _float(machine: _Machine) -> None:
    machine.stack.extend(struct.unpack(">d", machine.take(8)))


def _text(size: int) -> Callable[[_Machine], None]:
    """A string whose length is said in `size` bytes. Lone surrogates pass: file names can hold them."""
    return lambda machine: machine.stack.append(machine.take(machine.number(size)).decode("utf-8", "surrogatepass"))


def _new_dict(machine: _Machine) -> None:
    machine.stack.append({})


def _new_list(machine: _Machine) -> None:
    machine.stack.append([])


def _tuple_of(size: int) -> Callable[[_Machine], None]:
    def build(machine: _Machine) -> None:
        start = len(machine.stack) - size
        if start < 0:
            raise IndexError(start)
        items = machine.stack[start:]
        machine.stack[start:] = [_flat(items)]

    return build


def _tuple(machine: _Machine) -> None:
    items = machine.marked()
    machine.stack.append(_flat(items))


def _flat(items: list[Any]) -> tuple[Any, ...]:
    if not all(isinstance(item, _SCALARS) for item in items):
        raise BadInput("it holds a tuple of more than numbers and text")
    return tuple(items)


def _append(machine: _Machine) -> None:
    item = machine.stack.pop()
    _list_of(machine).append(item)


def _appends(machine: _Machine) -> None:
    items = machine.marked()
    _list_of(machine).extend(items)


def _list_of(machine: _Machine) -> list[Any]:
    if type(found := machine.stack[-1]) is not list:
        raise TypeError("no list to append to")
    return found


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _dict_of(machine)[key] = value


def _set_items(machine: _Machine) -> None:
    items = machine.marked()
    if len(items) % 2:
        raise ValueError("a key without a value")
    _dict_of(machine).update(zip(items[::2], items[1::2]))


def _dict_of(machine: _Machine) -> dict[Any, Any]:
    if type(found := machine.stack[-1]) is not dict:
        raise TypeError("no dict to put into")
    return found


_STOP = ord(".")
_INSTRUCTIONS: Mapping[int, Callable[[_Machine], None]] = {
    0x80: _protocol,
    0x95: _frame,
    ord("("): _mark,
    0x94: _memoize,
    ord("h"): _get,
    ord("j"): _long_get,
    ord("N"): _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    ord("K"): _unsigned(1),
    ord("M"): _unsigned(2),
    ord("J"): _signed,
    0x8A: _long,
    ord("G"): _float,
    0x8C: _text(1),
    ord("X"): _text(4),
    ord("}"): _new_dict,
    ord("]"): _new_list,
    ord(")"): _constant(()),
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
    ord("t"): _tuple,
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _set_item,
    ord("u"): _set_items,
}
