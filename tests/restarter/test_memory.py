"""What an owner's annotations remember: nothing is lost on the way, and no text breaks the reading."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpufrag.restarter import record as memory
from gpufrag.restarter.kubernetes.cluster import PHASE
from gpufrag.restarter.record import DAY_S, Memory

SECONDS = st.integers(0, 4_000_000_000).map(float)
NAMES = st.none() | st.text("abc-0123", min_size=1, max_size=20)
MEMORIES = st.builds(
    Memory,
    phase=st.none() | st.sampled_from(memory.PHASES),
    at_s=st.none() | SECONDS,
    by=NAMES,
    fingerprint=NAMES,
    count=st.integers(0, 10**9),
    history_s=st.lists(SECONDS, max_size=64).map(lambda times: tuple(sorted(times))),
    useless=st.integers(0, 9),
    stopped=NAMES,
)
OURS = list(Memory().annotations())


def kept(one: Memory) -> dict[str, str]:
    return {name: value for name, value in one.annotations().items() if value is not None}


@given(MEMORIES)
def test_what_is_written_is_read(one: Memory) -> None:
    assert Memory.read(kept(one)) == one


@given(st.dictionaries(st.sampled_from(OURS) | st.text(), st.text()))
def test_any_annotations_can_be_read(annotations: dict[str, str]) -> None:
    found = Memory.read(annotations)
    assert Memory.read(kept(found)) == found


def test_nothing_remembered_is_no_annotation() -> None:
    assert kept(Memory()) == {}
    assert Memory.read({}) == Memory()


def test_an_unknown_phase_is_a_restart_under_way() -> None:
    assert Memory.read({PHASE: "of a later version"}).phase == memory.WAITING


@given(MEMORIES, SECONDS)
def test_a_restart_is_remembered(one: Memory, now: float) -> None:
    begun = one.begun(now, "me-1", "cafe", useless=1)
    assert begun.count >= one.count
    assert now in begun.history_s
    assert all(now - at < DAY_S for at in begun.history_s)
    assert (begun.at_s, begun.by, begun.fingerprint, begun.useless) == (now, "me-1", "cafe", 1)


def test_the_latest_is_the_latest_of_all_that_is_said() -> None:
    assert Memory(at_s=5.0, history_s=(1.0, 9.0)).latest_s == 9.0
    assert Memory().latest_s is None
