"""The address that the driver gives to a new segment; torch breaks ties between free blocks by address.

Observed on an H200 (driver 580); exact except for space that libraries hold. cudaMalloc reserves address space in
chunks of 32 MiB, from the top down. It fills the holes of the newest chunk first and releases a chunk that is empty. A
gap between two chunks takes a new one only if 32 MiB stay free.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from ..settings import SEGMENT_GRID
from .blocks import ADDRESS_BITS

TOP = 1 << 55
CHUNK = 32 << 20


class Chunk:
    """Reserved address space and its holes (size by address). `rank` decreases, so the newest chunk sorts first."""

    __slots__ = ("address", "end", "holes", "rank")

    def __init__(self, address: int, end: int, rank: int) -> None:
        self.address = address
        self.end = end
        self.rank = rank
        self.holes: dict[int, int] = {}


class AddressSpace:
    """Assigns an address to each segment.

    recorded: (address, size) of a recorded run's segments, in order; used until a requested size differs.
    """

    def __init__(self, recorded: Iterable[tuple[int, int]] = ()) -> None:
        self._recorded = iter(recorded)
        self._taken: dict[int, int] = {}  # size by address
        self._chunks: dict[int, Chunk] = {}
        self._bases: list[int] = []
        self._holes: dict[int, list[tuple[int, int]]] = {}  # by size: (rank of the chunk, address), in that order
        self._gaps: list[tuple[int, int]] = []  # start and end of each free range between chunks
        self._rank = 0

    def take(self, size: int) -> int:
        """Return the address of a new segment of `size` bytes."""
        recorded = next(self._recorded, None)
        if recorded is not None and recorded[1] == size and self.take_at(*recorded):
            return recorded[0]
        self._recorded = iter(())
        size = _round_up(size, SEGMENT_GRID)
        fitting = [holes[0] for found, holes in self._holes.items() if found >= size]
        address = min(fitting)[1] if fitting else self._reserve(_round_up(size, CHUNK)).address
        self._fill(self._chunk_at(address), address, address, size)
        return address

    def take_at(self, address: int, size: int) -> bool:
        """Reserve exactly this range; return False if it is not free."""
        size = _round_up(size, SEGMENT_GRID)
        end = address + size
        chunk = self._chunk_at(address) or self._reserve_at(address, size)
        while end > chunk.end and chunk.end in self._chunks:  # a segment spanned both chunks: they are one
            self._absorb(chunk, self._chunks[chunk.end])
        if end > chunk.end:  # the recorded chunk was larger than assumed
            self._extend(chunk, min(end, chunk.end + self.room_at(chunk.end)))
        hole = next((a for a, s in chunk.holes.items() if a <= address and end <= a + s), None)
        if hole is not None:
            self._fill(chunk, hole, address, size)
        return hole is not None

    def room_at(self, address: int) -> int:
        """Return the bytes from `address` to the next reserved chunk above it."""
        index = bisect_right(self._bases, address)
        return (self._bases[index] if index < len(self._bases) else 1 << ADDRESS_BITS) - address

    def give_back(self, address: int) -> None:
        """Release a segment's range; ignores one that `take_at` refused."""
        size = self._taken.pop(address, None)
        if size is None:
            return
        chunk = self._chunk_at(address)
        assert chunk is not None
        self._add_hole(chunk, address, size)
        if chunk.holes.get(chunk.address) == chunk.end - chunk.address:
            self._drop(chunk)

    def _reserve_at(self, address: int, size: int) -> Chunk:
        """Add a chunk for a recorded segment; an unaligned one is in space that a library holds."""
        end = address + (_round_up(size, CHUNK) if address % CHUNK == 0 else size)
        return self._add_chunk(address, min(end, address + self.room_at(address)))

    def _reserve(self, size: int) -> Chunk:
        """Add a chunk in the highest gap with room to spare, else below all others."""
        below_all = self._bases[0] if self._bases else TOP
        end = next((end for start, end in reversed(self._gaps) if end - start >= size + CHUNK), below_all)
        return self._add_chunk(end - size, end)

    def _add_chunk(self, address: int, end: int) -> Chunk:
        self._rank -= 1
        chunk = self._chunks[address] = Chunk(address, address, self._rank)
        insort(self._bases, address)
        self._extend(chunk, end)
        return chunk

    def _extend(self, chunk: Chunk, end: int) -> None:
        start, chunk.end = chunk.end, end
        for gap in [gap for gap in self._gaps if gap[0] < end and start < gap[1]]:
            self._gaps.remove(gap)
            for part in ((gap[0], start), (end, gap[1])):
                if part[0] < part[1]:
                    insort(self._gaps, part)
        if start < end:
            self._add_hole(chunk, start, end - start)

    def _absorb(self, chunk: Chunk, above: Chunk) -> None:
        """Merge the chunk that begins where `chunk` ends into it."""
        holes = [(address, self._remove_hole(above, address)) for address in list(above.holes)]
        del self._chunks[above.address]
        del self._bases[bisect_left(self._bases, above.address)]
        chunk.end = above.end
        for address, size in holes:
            self._add_hole(chunk, address, size)

    def _drop(self, chunk: Chunk) -> None:
        """Release an empty chunk and merge the free ranges next to it."""
        start, end = chunk.address, chunk.end
        self._remove_hole(chunk, start)
        del self._chunks[start]
        del self._bases[bisect_left(self._bases, start)]
        index = bisect_left(self._gaps, (start, end))
        if index < len(self._gaps) and self._gaps[index][0] == end:
            end = self._gaps.pop(index)[1]
        if index and self._gaps[index - 1][1] == start:
            start = self._gaps.pop(index - 1)[0]
        if self._bases and start >= self._bases[0]:
            insort(self._gaps, (start, end))
        else:  # space below all chunks is not a gap
            self._gaps = [gap for gap in self._gaps if self._bases and gap[0] >= self._bases[0]]

    def _chunk_at(self, address: int) -> Chunk | None:
        index = bisect_right(self._bases, address)
        chunk = self._chunks[self._bases[index - 1]] if index else None
        return chunk if chunk is not None and address < chunk.end else None

    def _fill(self, chunk: Chunk | None, hole: int, address: int, size: int) -> None:
        """Take `size` bytes at `address` out of the hole that begins at `hole`."""
        assert chunk is not None
        end = hole + self._remove_hole(chunk, hole)
        if address > hole:
            self._add_hole(chunk, hole, address - hole)
        if end > address + size:
            self._add_hole(chunk, address + size, end - address - size)
        self._taken[address] = size

    def _add_hole(self, chunk: Chunk, address: int, size: int) -> None:
        """Add a hole, merged with adjacent ones."""
        if address + size in chunk.holes:
            size += self._remove_hole(chunk, address + size)
        before = next((a for a, s in chunk.holes.items() if a + s == address), None)
        if before is not None:
            size += self._remove_hole(chunk, before)
            address = before
        chunk.holes[address] = size
        insort(self._holes.setdefault(size, []), (chunk.rank, address))

    def _remove_hole(self, chunk: Chunk, address: int) -> int:
        size = chunk.holes.pop(address)
        holes = self._holes[size]
        del holes[bisect_left(holes, (chunk.rank, address))]
        if not holes:
            del self._holes[size]
        return size


def _round_up(size: int, grid: int) -> int:
    return -(-size // grid) * grid
