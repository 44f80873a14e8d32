"""The sorted free list, against a plain sorted list."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.model.settings import Settings
from gpufrag.model.simulator import blocks
from gpufrag.model.simulator.blocks import ORDER_BITS, Arena, Block, FreeList, Pool

ARENA = Arena(Pool(Settings(), True, (0, 0), expandable=False, whole=False), stream=0)
ACTIONS = st.lists(st.tuples(st.sampled_from(["add", "add", "take", "remove"]), st.integers(1, 30)), max_size=200)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "CHUNK", 4)
        yield


def key(block: Block) -> tuple[int, int]:
    return block.size, block.address


@given(ACTIONS)
def test_free_list_equals_a_sorted_list(actions: list[tuple[str, int]]) -> None:
    found, expected = FreeList(), list[Block]()
    for address, (action, size) in enumerate(actions):
        if action == "add":
            block = Block(address, size, size << ORDER_BITS | address, ARENA)
            found.add(block)
            expected = sorted([*expected, block], key=key)
        elif action == "take":
            first = next((block for block in expected if block.size >= size), None)
            assert found.take(size) is first
            expected = [block for block in expected if block is not first]
        elif expected:
            found.remove(expected.pop(size % len(expected)))
        assert list(found) == expected
        assert list(found.at_least(15)) == [block for block in expected if block.size >= 15]


def test_removing_an_unknown_block_raises() -> None:
    with pytest.raises(KeyError):
        FreeList().remove(Block(0, 512, 0, ARENA))


class Counted(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int.__lt__(self, other)

    def __lshift__(self, bits: int) -> Counted:
        return Counted(int.__lshift__(self, bits))

    def __or__(self, other: int) -> Counted:
        return Counted(int.__or__(self, other))


def comparisons(blocks: int, operations: int = 300) -> float:
    """On average, of one operation among so many blocks."""
    chance, free = random.Random(3), FreeList()
    for address in range(blocks):
        size = Counted(512 * chance.randrange(1, 1 << 20))
        free.add(Block(address << 30, size, size << ORDER_BITS | address << 30, ARENA))
    Counted.compared = 0
    for _ in range(operations):
        taken = free.take(Counted(512 * chance.randrange(1, 1 << 19)))
        assert taken is not None
        free.add(taken)
    return Counted.compared / (2 * operations)


def test_operation_cost_grows_logarithmically() -> None:
    few, many = comparisons(500), comparisons(64_000)
    assert 4 < few <= 2 * math.log2(500)
    assert many - few <= 1.5 * math.log2(64_000 / 500)
