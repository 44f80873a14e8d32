"""Expandable segments: address space, by default of 9/8 of the device, with pages mapped on demand."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from ..heap import INACTIVE
from .blocks import UNMAPPED, Arena, Block, Region
from .device import Device

UNKNOWN_SPAN = 1 << 42  # if the device's size is unknown


def best_of(blocks: Iterable[Block]) -> Block | None:
    """Return the block for a request, of those that are large enough, in the order of their keys.

    A block in front of unmapped pages counts with all bytes that it can grow to.
    """
    best, least = None, 0
    for block in blocks:
        reach = _reach(block)
        if best is not None and reach >= least:
            break
        best, least = block, reach
    return best


def _reach(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and after.state is UNMAPPED else 0)


def grow(arena: Arena, size: int, device: Device, heads: dict[Block, None]) -> Block | None:
    """Return a free block of at least `size` bytes, mapped at the lowest address with room; not in a free list.

    Returns None if the driver has no pages left, and keeps the pages mapped so far as free blocks. Also returns None if
    no expandable segment is that large.
    """
    block = _lowest_room(arena, size)
    if block is None:
        if size > _span(arena, device):
            return None
        block = reserve(arena, device, heads)
    if block.state is UNMAPPED:
        mapped = _map(block, min(size, block.size), device)
        if mapped is None:
            return None
        block = mapped
    while block.size < size:
        unmapped = block.next
        assert unmapped is not None
        mapped = _map(unmapped, min(size - block.size, unmapped.size), device)
        if mapped is None:
            return None
        block = mapped
    arena.free.remove(block)
    return block


def mappings(arena: Arena, size: int) -> list[int]:
    """Return the bytes that `grow` would have to map, by range of pages, in order."""
    page = arena.pool.page
    assert page is not None
    block = _lowest_room(arena, size)
    if block is None:
        return [-(-size // page) * page]
    wanted, found = size, []
    while block is not None and wanted > 0:
        if block.state is UNMAPPED:
            found.append(min(block.size, -(-wanted // page) * page))
        wanted -= block.size
        block = block.next
    return found


def mapped_room(arena: Arena, size: int) -> Block | None:
    """Return the block that `grow` would return without mapping a page."""
    block = _lowest_room(arena, size)
    return block if block is not None and block.state is INACTIVE and block.size >= size else None


def _lowest_room(arena: Arena, size: int) -> Block | None:
    for unmapped in arena.unmapped:
        before = unmapped.prev
        first = before if before is not None and before.state is INACTIVE else unmapped
        if _has_room(first, size):
            return first
    return None


def _has_room(first: Block, size: int) -> bool:
    found = 0
    block: Block | None = first
    while block is not None and found < size and (block.state is INACTIVE or block.state is UNMAPPED):
        found += block.size
        block = block.next
    return found >= size


def reserve(arena: Arena, device: Device, heads: dict[Block, None], address: int | None = None) -> Block:
    """Return a new unmapped expandable segment, at `address` if the recorded address is known."""
    page = arena.pool.page
    assert page is not None
    size = _span(arena, device)
    if address is None:
        address = device.addresses.take(size)
    else:
        size = min(size, device.addresses.room_at(address) // page * page)
        device.addresses.take_at(address, size)
    block = Block(address, size, device.ordering.key(address, size), arena, Region(address, size, page))
    block.state = UNMAPPED
    heads[block] = None
    _add_unmapped(arena, block)
    return block


def _span(arena: Arena, device: Device) -> int:
    """Return the address space of a new expandable segment, in whole pages."""
    page = arena.pool.page
    assert page is not None
    known = arena.pool.settings.address_space(arena.pool.small, device.driver.size)
    return UNKNOWN_SPAN // page * page if known is None else known


def _map(block: Block, size: int, device: Device) -> Block | None:
    """Map the first pages of an unmapped block; return the free block that contains them."""
    arena, region = block.arena, block.region
    assert region is not None
    size = -(-size // region.page) * region.page
    if not device.holds(size):
        return None
    arena.unmapped.remove(block)
    if size < block.size:
        _add_unmapped(arena, block.split(size, new_is_rest=True))
    block.state = INACTIVE
    device.give(arena, block.address, size)
    return arena.put(block)


def bytes_of_free_pages(block: Block) -> int:
    first, last = _free_pages(block)
    return max(0, last - first)


def _free_pages(block: Block) -> tuple[int, int]:
    """Return begin and end of the whole pages inside a block, as offsets into its segment."""
    region = block.region
    assert region is not None
    start = block.address - region.address
    return -(-start // region.page) * region.page, (start + block.size) // region.page * region.page


def shrink(block: Block, device: Device, heads: dict[Block, None]) -> None:
    """Unmap the pages completely inside a free block; a segment without pages is removed."""
    arena, region = block.arena, block.region
    assert region is not None
    start = block.address - region.address
    first, last = _free_pages(block)
    if first >= last:
        return
    arena.free.remove(block)
    if first > start:
        before = block
        block = block.split(first - start)
        arena.add(before)
    if block.size > last - first:
        arena.add(block.split(last - first, new_is_rest=True))
    device.take_back(arena, block.address, block.size)
    block = _join_unmapped(block)
    if block.whole:
        del heads[block]
        device.addresses.give_back(region.address)
    else:
        _add_unmapped(arena, block)


def _join_unmapped(block: Block) -> Block:
    block.state = UNMAPPED
    unmapped = block.arena.unmapped
    after, before = block.next, block.prev
    if after is not None and after.state is UNMAPPED:
        unmapped.remove(after)
        block.absorb_next()
    if before is not None and before.state is UNMAPPED:
        unmapped.remove(before)
        block = block.join_previous()
    return block


def _add_unmapped(arena: Arena, block: Block) -> None:
    insort(arena.unmapped, block, key=_address)


def _address(block: Block) -> int:
    return block.address
