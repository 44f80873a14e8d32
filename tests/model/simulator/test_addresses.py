"""Segment addresses, by hand and as a property; the recorded cases show the same for the driver."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpufrag.model.simulator.addresses import CHUNK, AddressSpace

MIB = 1 << 20
ACTIONS = st.lists(st.tuples(st.booleans(), st.integers(1, 60), st.integers(0, 1000)), max_size=80)


def test_chunks_descend_and_their_tails_are_filled() -> None:
    space = AddressSpace()
    first, second, tail = space.take(20 * MIB), space.take(40 * MIB), space.take(24 * MIB)
    assert first - second == 2 * CHUNK
    assert tail == second + 40 * MIB


def test_newest_chunk_is_filled_first() -> None:
    space = AddressSpace()
    chunks = [space.take(30 * MIB) for _ in range(3)]
    assert [space.take(2 * MIB) for _ in range(3)] == [chunk + 30 * MIB for chunk in reversed(chunks)]


def test_gap_larger_than_a_chunk_fills_from_its_top() -> None:
    space = AddressSpace()
    _, freed, lowest = (space.take(96 * MIB) for _ in range(3))
    space.give_back(freed)
    assert space.take(96 * MIB) == lowest - 96 * MIB
    assert space.take(64 * MIB) == freed + 32 * MIB


def test_space_below_all_chunks_is_reused() -> None:
    space = AddressSpace()
    space.take(32 * MIB)
    lowest = space.take(32 * MIB)
    space.give_back(lowest)
    assert space.take(64 * MIB) == lowest - 32 * MIB


def test_recorded_addresses_are_used_while_the_sizes_agree() -> None:
    space = AddressSpace([(96 * CHUNK, 4 * MIB), (96 * CHUNK + 4 * MIB, 2 * MIB), (7 * CHUNK, 2 * MIB)])
    assert space.take(4 * MIB) == 96 * CHUNK
    assert space.take(6 * MIB) == 96 * CHUNK + 4 * MIB  # not as recorded: the chunk's tail
    assert space.take(2 * MIB) == 96 * CHUNK + 10 * MIB


def test_taken_recorded_address_is_not_used() -> None:
    space = AddressSpace([(96 * CHUNK, 4 * MIB), (96 * CHUNK + 2 * MIB, 4 * MIB)])
    assert [space.take(4 * MIB), space.take(4 * MIB)] == [96 * CHUNK, 96 * CHUNK + 4 * MIB]


def test_adjacent_recorded_segments_extend_a_chunk() -> None:
    recorded = [(96 * CHUNK + 20 * MIB * index, 20 * MIB) for index in range(9)]
    space = AddressSpace(recorded)
    assert [space.take(20 * MIB) for _ in range(9)] == [address for address, _ in recorded]


@given(ACTIONS, st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), max_size=8))
def test_no_two_segments_overlap(actions: list[tuple[bool, int, int]], recorded: list[tuple[int, int]]) -> None:
    space = AddressSpace((96 * CHUNK + place * 2 * MIB, size * 2 * MIB) for place, size in recorded)
    taken: dict[int, int] = {}
    for take, size, pick in actions:
        if take or not taken:
            address = space.take(size * 2 * MIB)
            assert all(address + size * 2 * MIB <= at or at + used <= address for at, used in taken.items())
            taken[address] = size * 2 * MIB
        else:
            address = sorted(taken)[pick % len(taken)]
            del taken[address]
            space.give_back(address)


@given(st.lists(st.integers(1, 60), max_size=30), st.randoms(use_true_random=False))
def test_given_back_space_is_forgotten(sizes: list[int], order: object) -> None:
    space, fresh = AddressSpace(), AddressSpace()
    taken = [space.take(size * 2 * MIB) for size in sizes]
    order.shuffle(taken)  # type: ignore[attr-defined]
    for address in taken:
        space.give_back(address)
    assert space.take(20 * MIB) == fresh.take(20 * MIB)


def test_segment_across_two_chunks_joins_them() -> None:
    """As in the recorded differential-221: the space of freed segments is used again across what seemed an end."""
    sizes = (20 * MIB, 12 * MIB)
    recorded = [(base + start, size) for base in (96 * CHUNK, 97 * CHUNK) for start, size in zip((0, 20 * MIB), sizes)]
    across = (96 * CHUNK + 20 * MIB, 14 * MIB)
    space = AddressSpace([*recorded, across])
    _, *freed, _ = [space.take(size) for _, size in recorded]
    for address in freed:
        space.give_back(address)
    assert space.take(14 * MIB) == across[0]
    assert space.take(18 * MIB) == 97 * CHUNK + 2 * MIB
