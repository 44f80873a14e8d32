"""Free blocks of one pool and stream, in the order in which torch looks at them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .blocks import Block

ADDRESS_BITS = 64
CHUNK = 1024


class FreeList:
    """Blocks sorted by size, then by address.

    The sort key is one integer, kept in chunks of bounded length: an insertion moves at most one chunk, whatever
    the number of blocks. `_bounds[i]` is the largest key that may lie in chunk i; the last chunk has no bound.
    """

    __slots__ = ("_blocks", "_bounds", "_chunks")

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self._chunks: list[list[int]] = [[]]
        self._bounds: list[int] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return self.at_least(0)

    def add(self, block: Block) -> None:
        key = block.size << ADDRESS_BITS | block.address
        self._blocks[key] = block
        at = bisect_left(self._bounds, key)
        chunk = self._chunks[at]
        insort(chunk, key)
        if len(chunk) > CHUNK:
            self._halve(at)

    def remove(self, block: Block) -> None:
        """Raises KeyError for a block that is not in the list."""
        key = block.size << ADDRESS_BITS | block.address
        del self._blocks[key]
        at = bisect_left(self._bounds, key)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, key)]
        if not chunk:
            self._drop(at)

    def take(self, size: int) -> Block | None:
        """Removes and returns the first block of `size` bytes or more."""
        key = size << ADDRESS_BITS
        at = bisect_left(self._bounds, key)
        chunk = self._chunks[at]
        index = bisect_left(chunk, key)
        if index == len(chunk):
            at, index = at + 1, 0
            if at == len(self._chunks):
                return None
            chunk = self._chunks[at]
        block = self._blocks.pop(chunk.pop(index))
        if not chunk:
            self._drop(at)
        return block

    def first(self, size: int) -> Block | None:
        """The first block of `size` bytes or more; it stays in the list."""
        key = size << ADDRESS_BITS
        at = bisect_left(self._bounds, key)
        chunk = self._chunks[at]
        index = bisect_left(chunk, key)
        if index < len(chunk):
            return self._blocks[chunk[index]]
        return self._blocks[self._chunks[at + 1][0]] if at + 1 < len(self._chunks) else None

    def at_least(self, size: int) -> Iterator[Block]:
        """The blocks of `size` bytes or more, in order. The list must not change while it is read."""
        key = size << ADDRESS_BITS
        at = bisect_left(self._bounds, key)
        index = bisect_left(self._chunks[at], key)
        for chunk in self._chunks[at:]:
            for found in chunk[index:] if index else chunk:
                yield self._blocks[found]
            index = 0

    def _halve(self, at: int) -> None:
        chunk = self._chunks[at]
        middle = len(chunk) // 2
        self._chunks.insert(at + 1, chunk[middle:])
        del chunk[middle:]
        self._bounds.insert(at, chunk[-1])

    def _drop(self, at: int) -> None:
        """Removes an emptied chunk; the last one that is left stays."""
        if self._bounds:
            del self._chunks[at]
            del self._bounds[min(at, len(self._bounds) - 1)]
