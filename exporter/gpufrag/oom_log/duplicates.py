"""The same error told again: by a chained traceback, by a rank's marked copy, by a launcher's summary."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from .lines import NAMES_APART
from .oom import Oom

_REMEMBERED = 500
_GRID = 256
"""To which the BFC allocator rounds."""
_BFC = ("tensorflow", "jax")


@dataclass
class _Told:
    oom: Oom
    names: frozenset[str]
    """What its lines were marked with; a copy without a mark may be anybody's, and is one's once a mark is seen."""

    def is_of(self, names: frozenset[str]) -> bool:
        return names <= self.names or self.names <= names


class Duplicates:
    """Remembers the last errors, so that memory is bounded."""

    def __init__(self) -> None:
        self._told: deque[_Told] = deque(maxlen=_REMEMBERED)

    def is_new(self, oom: Oom) -> bool:
        oom = _plain(oom)
        names = frozenset(oom.source.split(NAMES_APART)) if oom.source else frozenset()
        first = next((told for told in self._told if told.is_of(names) and _same(told.oom, oom)), None)
        if first is None:
            self._told.append(_Told(oom, names))
        else:
            first.names |= names
        return first is None


def _same(first: Oom, again: Oom) -> bool:
    if (first.device, first.facts) == (again.device, again.facts):
        return True
    return _is_bare(again) and _is_kin(first, again) and _same_device(first, again) and _same_size(first, again)


def _is_kin(first: Oom, again: Oom) -> bool:
    """Whether a bare error can be the other's. Torch's own without a size is another one: it could not say more."""
    if again.facts.allocator in _BFC:
        return first.facts.allocator in _BFC
    return (first.facts.allocator, again.facts.allocator) == ("torch", "torch") and again.facts.requested is not None


def _plain(oom: Oom) -> Oom:
    """Without what the words around the message have told: that there is no limit."""
    return replace(oom, facts=replace(oom.facts, limit=None)) if oom.facts.limit == oom.facts.size else oom


def _is_bare(oom: Oom) -> bool:
    """An error that names no more than the request: after a dump, or all figures, of the same one it is that one's."""
    facts = oom.facts
    return (facts.limit, facts.allocated, facts.free_total, facts.size) == (None, None, None, None)


def _same_device(first: Oom, again: Oom) -> bool:
    return first.device is None or again.device is None or first.device == again.device


def _same_size(first: Oom, again: Oom) -> bool:
    one, two = first.facts.requested, again.facts.requested
    if one is None or two is None:
        return two is None
    return abs(one - two) <= max(_GRID, first.facts.precision, again.facts.precision)
