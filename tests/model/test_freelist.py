"""The sorted free list, against a plain sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.model import freelist
from gpufrag.model.blocks import Arena, Block, Pool
from gpufrag.model.freelist import FreeList
from gpufrag.model.settings import Settings

ARENA = Arena(Pool(Settings(), True, (0, 0), expandable=False, whole=False), stream=0)
ACTIONS = st.lists(st.tuples(st.sampled_from(["add", "add", "take", "remove"]), st.integers(1, 30)), max_size=200)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(freelist, "CHUNK", 4)
        yield


def key(block: Block) -> tuple[int, int]:
    return block.size, block.address


@given(ACTIONS)
def test_it_is_a_sorted_list(actions: list[tuple[str, int]]) -> None:
    found, expected = FreeList(), list[Block]()
    for address, (action, size) in enumerate(actions):
        if action == "add":
            block = Block(address, size, ARENA)
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


def test_a_block_that_is_not_in_the_list_cannot_be_removed() -> None:
    with pytest.raises(KeyError):
        FreeList().remove(Block(0, 512, ARENA))
