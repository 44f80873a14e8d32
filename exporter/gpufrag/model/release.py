"""How cached memory goes back to the driver: garbage collection, oversize blocks, and the flush of everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .blocks import Arena, Block, Pool
from .device import Device
from .expandable import shrink

Heads = dict[Block, None]
"""The first block of each segment, in the order of addresses."""


def release_segment(block: Block, device: Device, heads: Heads) -> None:
    """Gives back a plain segment that is one free block."""
    block.arena.free.remove(block)
    del heads[block]
    device.take_back(block.arena, block.address, block.size)
    device.addresses.give_back(block.address)


def flush(pools: Iterable[Pool], device: Device, heads: Heads) -> None:
    """Gives back every free segment and, of expandable ones, every free page."""
    for pool in pools:
        free = [block for arena in pool.in_stream_order() for block in arena.free]
        if pool.page is None:
            for block in [block for block in free if block.prev is None and block.next is None]:
                release_segment(block, device, heads)
        else:
            for block in free:
                shrink(block, device, heads)


def oversize(arena: Arena, size: int, least: int, gone: Sequence[Block]) -> tuple[list[Block], bool]:
    """The blocks of `least` (max_split_size) bytes or more that go for a request, and whether they suffice.

    That is the smallest block that suffices alone, else the largest ones until their sum does; none of `gone`.
    """
    wanted = max(size, least)
    free = [block for block in arena.free.at_least(least) if block.region is None and block not in gone]
    enough = next((block for block in free if block.size >= wanted), None)
    if enough is not None:
        return [enough], True
    chosen: list[Block] = []
    released = 0
    for block in reversed(free):
        if released >= wanted:
            break
        released += block.size
        chosen.append(block)
    return chosen, released >= wanted


def too_old(pool: Pool, threshold: float, device: Device) -> list[Block]:
    """The free segments that garbage collection gives back, in order, to bring the reserved bytes to the threshold.

    Those of more than average age, again and again until it is enough. `threshold` is a share of the limit; a
    block's age counts the searches of its pool since it was freed.
    """
    excess = 0 if device.limit is None else device.reserved - int(threshold * device.limit)
    blocks = [block for arena in pool.in_stream_order() for block in arena.free if block.whole] if excess > 0 else []
    chosen: list[Block] = []
    while blocks and excess > 0:
        average = sum(pool.age - block.born for block in blocks) / len(blocks)
        old = [block for block in blocks if block.region is None and pool.age - block.born >= average]
        if not old:
            break
        chosen += old
        excess -= sum(block.size for block in old)
        going = set(old)
        blocks = [block for block in blocks if block not in going]
    return chosen
