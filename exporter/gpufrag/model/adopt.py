"""A recorded segment, taken over into the simulated allocator as if it had been there all along."""

from __future__ import annotations

from collections.abc import Iterator

from .blocks import Arena, Block
from .device import Device
from .expandable import reserve
from .heap import Segment
from .release import Heads


def adopt(segment: Segment, arena: Arena, device: Device, heads: Heads) -> list[Block]:
    """The segment's blocks, chained, in the states that were recorded; the free ones are in no free list yet."""
    if arena.pool.page is None:
        run = Block(segment.address, segment.size, arena)
        heads[run] = None
    else:
        run = _mapped(segment, arena, device, heads)
    device.take_over(arena, segment.address, segment.size)
    return list(_cut(run, segment))


def _mapped(segment: Segment, arena: Arena, device: Device, heads: Heads) -> Block:
    """The mapped run, cut out of the address space that is reserved around it."""
    room = next((block for block in arena.unmapped if _holds(block, segment)), None)
    if room is None:
        room = reserve(arena, device, heads, segment.address)
    arena.unmapped.remove(room)
    run = room
    if segment.address > room.address:
        run = room.split(segment.address - room.address)
        arena.unmapped.append(room)
    if run.size > segment.size:
        arena.unmapped.append(run.split(segment.size))
    return run


def _holds(unmapped: Block, segment: Segment) -> bool:
    return unmapped.address <= segment.address and segment.address + segment.size <= unmapped.address + unmapped.size


def _cut(run: Block, segment: Segment) -> Iterator[Block]:
    for block in segment.blocks():
        rest = run.split(block.size) if block.size < run.size else None
        run.state, run.requested = block.state, block.requested
        yield run
        if rest is not None:
            run = rest
