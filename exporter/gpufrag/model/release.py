"""How cached memory goes back to the driver: garbage collection, oversize blocks, and the flush of everything."""

from __future__ import annotations

from collections.abc import Iterable

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
        blocks = [block for arena in pool.in_stream_order() for block in arena.free]
        for block in blocks:
            if block.region is None and block.whole:
                release_segment(block, device, heads)
        for block in blocks:
            if block.region is not None:
                shrink(block, device, heads)


def release_oversize(arena: Arena, size: int, least: int, device: Device, heads: Heads) -> bool:
    """Gives back enough blocks of `least` (max_split_size) bytes or more for a request of `size` bytes.

    That is the smallest block that suffices alone, else the largest ones until their sum does; whether it did.
    """
    wanted = max(size, least)
    enough = next(arena.free.at_least(wanted), None)
    if enough is not None and enough.region is None:
        release_segment(enough, device, heads)
        return True
    released = 0
    smaller = [block for block in arena.free.at_least(least) if block.size < wanted and block.region is None]
    for block in reversed(smaller):
        if released >= wanted:
            break
        released += block.size
        release_segment(block, device, heads)
    return released >= wanted


def collect(pool: Pool, threshold: float, device: Device, heads: Heads) -> None:
    """Gives back free segments of more than average age, until the reserved bytes fall to the threshold.

    `threshold` is a share of the limit; a block's age counts the searches of its pool since it was freed.
    """
    if device.limit is None:
        return
    excess = device.reserved - int(threshold * device.limit)
    if excess <= 0:
        return
    blocks = [block for arena in pool.in_stream_order() for block in arena.free if block.whole]
    total_age = sum(pool.age - block.born for block in blocks)
    released = 0
    while blocks and released < excess:
        average = total_age / len(blocks)
        old = [block for block in blocks if block.region is None and pool.age - block.born >= average]
        if not old:
            return
        for block in old:
            released += block.size
            total_age -= pool.age - block.born
            release_segment(block, device, heads)
        blocks = [block for block in blocks if block in heads]
