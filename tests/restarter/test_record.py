"""The restart record: nothing is lost between writing and reading, and no text breaks the reading."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpufrag.restarter.record import CLAIMED, DAY_S, PHASE, SUSPENDED, WAITING, RestartRecord

SECONDS = st.integers(0, 4_000_000_000).map(float)
NAMES = st.none() | st.text("abc-0123", min_size=1, max_size=20)
RECORDS = st.builds(
    RestartRecord,
    phase=st.none() | st.sampled_from([CLAIMED, SUSPENDED, WAITING]),
    order=NAMES,
    at_s=st.none() | SECONDS,
    by=NAMES,
    fingerprint=NAMES,
    count=st.integers(0, 10**9),
    history_s=st.lists(SECONDS, max_size=64).map(lambda times: tuple(sorted(times))),
    ineffective=st.integers(0, 9),
    stopped=NAMES,
)
OURS = list(RestartRecord().annotations())


def kept(one: RestartRecord) -> dict[str, str]:
    return {name: value for name, value in one.annotations().items() if value is not None}


@given(RECORDS)
def test_record_written_is_record_read(one):
    assert RestartRecord.read(kept(one)) == one


@given(st.dictionaries(st.sampled_from(OURS) | st.text(), st.text()))
def test_any_annotations_can_be_read(annotations):
    found = RestartRecord.read(annotations)
    assert RestartRecord.read(kept(found)) == found


def test_empty_record_has_no_annotations():
    assert (kept(RestartRecord()), RestartRecord.read({})) == ({}, RestartRecord())


def test_unknown_phase_counts_as_waiting():
    assert RestartRecord.read({PHASE: "of a later version"}).phase == WAITING


@given(RECORDS, SECONDS)
def test_claim_is_recorded(one, now):
    claimed = one.claimed(now, "me-1", "cafe", ineffective=1)
    assert claimed.count >= one.count
    assert now in claimed.history_s
    assert all(now - at < DAY_S for at in claimed.history_s)
    assert (claimed.phase, claimed.at_s, claimed.by) == (CLAIMED, now, "me-1")
    assert (claimed.fingerprint, claimed.ineffective) == ("cafe", 1)


def test_latest_restart_is_the_newest_of_all_times():
    assert RestartRecord(at_s=5.0, history_s=(1.0, 9.0)).latest_s == 9.0
    assert RestartRecord().latest_s is None
