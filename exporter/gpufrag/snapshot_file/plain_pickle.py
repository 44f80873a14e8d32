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
_index = struct.Struct("<I").unpack_from
_SCALARS = (str, int, float, bool, type(None))
COST_LIMIT = 14
"""Bytes of memory per byte of the pickle, as estimated; a real snapshot takes about 10, numbers 19 at most."""
TOO_COSTLY = f"its data takes more than {COST_LIMIT} times its size in memory, which no snapshot does"
_LIST, _DICT, _FIRST_ITEM, _ITEM, _TUPLE, _TEXT, _SLOT = 72, 64, 216, 48, 64, 88, 24
"""Estimated bytes of an empty list or dict, the first item of a dict and each after the fifth, a tuple, a short text, a
constant."""
_FREE_ITEMS = 5  # of a dict: the memory for the first item holds five
_COSTS = {b"]": _LIST, b"}": _DICT + _FIRST_ITEM, b"\x8c": _TEXT} | dict.fromkeys((b"N", b")", b"\x88", b"\x89"), _SLOT)
_QUICK_LIMIT = 9.5
"""Bytes of memory per byte, without a dict's further items: at most 20 with those and with numbers."""
_NUMBER = rb"K.|M..|J.{4}|\x8a(?:\x00|%s|\x09.{8}\x00)" % b"|".join(b"%c.{%d}" % (n, n) for n in range(1, 9))
_SHORT_TEXT = b"|".join(rb"\x%02x.{%d}" % (n, n) for n in range(256))
_PLAIN = re.compile(
    rb"(?s)(?:[()N\x88\x89}\]aesu\x94]|h.|\x8c(?:%s)|(?:%s)(?:%s)\x86|%s|j.{4}|G.{8}|\x95.{8}){1,2000}"
    % (_SHORT_TEXT, _NUMBER, _NUMBER, _NUMBER)
)
"""Instructions without a condition of their own; a tuple only in the form of a pool id, two numbers."""


class _Machine:
    """The state of one reading: its position, the stack, the memo, and the memory spent on containers."""

    def __init__(self, data: bytes) -> None:
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

    def take(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise IndexError(self.at)
        return self.data[start : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def marked(self) -> list[Any]:
        """Pop what was pushed since the last mark."""
        found, self.stack = self.stack, self.outer.pop()
        return found


def loads(data: bytes) -> Any:
    """Return the value of a pickle (protocol 4 or newer). Raises BadInput without the file's name."""
    if _is_quick(data):
        try:
            return pickle.loads(data)  # noqa: S301 (every instruction was checked)
        except (pickle.UnpicklingError, EOFError, IndexError, KeyError, TypeError, ValueError, AttributeError):
            pass  # the machine below names what is wrong
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


def _is_quick(data: bytes) -> bool:
    """Return whether all instructions are harmless in any order and cannot fill the memory."""
    cost = sum(cost * data.count(instruction) for instruction, cost in _COSTS.items())  # bytes of numbers count too
    if not data.startswith((b"\x80\x04", b"\x80\x05")) or cost > _QUICK_LIMIT * len(data):
        return False
    at, end = 2, len(data)
    while at < end:
        if (found := _PLAIN.match(data, at)) is not None:
            at = found.end()
        elif data[at] == _STOP:
            return True
        elif data[at] == _LONG_TEXT:
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        else:
            return False
    return False


def _protocol(machine: _Machine) -> None:
    if machine.number(1) < 4:  # older ones choose their memo's indexes, up to 2^32 for one entry
        raise BadInput("its pickle protocol is older than 4; write it with pickle.dump(…, protocol=4)")


def _frame(machine: _Machine) -> None:
    machine.take(8)


def _mark(machine: _Machine) -> None:
    machine.spend(_LIST)
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
    def push(machine: _Machine) -> None:
        machine.spend(_SLOT)
        machine.stack.append(value)

    return push


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
    """Read a string whose length has `size` bytes. Lone surrogates are valid: file names can have them."""

    def push(machine: _Machine) -> None:
        machine.spend(_TEXT)
        machine.stack.append(machine.take(machine.number(size)).decode("utf-8", "surrogatepass"))

    return push


def _new_dict(machine: _Machine) -> None:
    machine.spend(_DICT)
    machine.stack.append({})


def _new_list(machine: _Machine) -> None:
    machine.spend(_LIST)
    machine.stack.append([])


def _tuple_of(size: int) -> Callable[[_Machine], None]:
    def build(machine: _Machine) -> None:
        start = len(machine.stack) - size
        if start < 0:
            raise IndexError(start)
        machine.spend(_TUPLE)
        items = machine.stack[start:]
        machine.stack[start:] = [_flat(items)]

    return build


def _tuple(machine: _Machine) -> None:
    items = machine.marked()
    machine.spend(_TUPLE + 8 * len(items))
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
    found = _dict_of(machine)
    machine.spend(_items_cost(len(found) + 1) - _items_cost(len(found)))
    found[key] = value


def _set_items(machine: _Machine) -> None:
    items = machine.marked()
    if len(items) % 2:
        raise ValueError("a key without a value")
    found = _dict_of(machine)
    machine.spend(_items_cost(len(found) + len(items) // 2) - _items_cost(len(found)))
    found.update(zip(items[::2], items[1::2]))


def _items_cost(count: int) -> int:
    return _FIRST_ITEM + _ITEM * max(0, count - _FREE_ITEMS) if count else 0


def _dict_of(machine: _Machine) -> dict[Any, Any]:
    if type(found := machine.stack[-1]) is not dict:
        raise TypeError("no dict to put into")
    return found


_STOP, _LONG_TEXT = ord("."), ord("X")
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
