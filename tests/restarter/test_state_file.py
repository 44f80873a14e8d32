"""The state file: no change is lost, and none overwrites another that it has not seen."""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufrag.errors import Unavailable
from gpufrag.restarter import state_file
from gpufrag.restarter.backend import Away, Conflict
from gpufrag.restarter.record import PHASE
from gpufrag.restarter.state_file import Entry, StateFile


@pytest.fixture
def state(tmp_path):
    return StateFile(tmp_path / "state.json")


def test_change_is_seen_by_another(state, tmp_path):
    assert state.get("a") == Entry()
    assert state.patch("a", {"x": "1", "y": None}, 0) == Entry(1, {"x": "1"})
    assert StateFile(tmp_path / "state.json").get("a") == Entry(1, {"x": "1"})
    assert state.patch("a", {"x": None}, None) == Entry(2, {})


def test_stale_version_is_a_conflict(state):
    state.patch("a", {"x": "1"}, 0)
    with pytest.raises(Conflict):
        state.patch("a", {"x": "2"}, 0)
    assert state.get("a").annotations == {"x": "1"}


def test_lock_of_another_program_is_an_error(state, tmp_path, monkeypatch):
    monkeypatch.setattr(state_file, "LOCK_TIMEOUT_S", 0.1)
    with (tmp_path / "state.json.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Away, match="another process holds the lock"):
            state.patch("a", {}, None)
    assert state.patch("a", {}, None).version == 1


def test_circuit_is_stored_with_its_version(state):
    annotations, version = state.load()
    state.save({"x": "1"}, version)
    with pytest.raises(Conflict):
        state.save({"x": "2"}, version)
    assert (annotations, state.load()[0]) == ({}, {"x": "1"})


def test_one_of_many_concurrent_changes_wins(state):
    def attempt(number: int) -> bool:
        try:
            state.patch("a", {"by": str(number)}, 0)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(16))) == 1
    assert state.get("a").version == 1


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": 7}', '{"a": {"version": "1", "annotations": {}}}'])
def test_broken_file_is_an_error(tmp_path, text):
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(Away, match="not a state file"):
        StateFile(path).get("a")
    with pytest.raises(Away):
        StateFile(path).patch("a", {}, None)


def test_pipe_at_its_place_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "state.json")
    with pytest.raises(Away, match="not a regular file"):
        StateFile(tmp_path / "state.json").get("a")


def test_oldest_idle_entries_are_dropped(state, monkeypatch):
    monkeypatch.setattr(state_file, "MAX_ENTRIES", 2)
    state.patch("old", {PHASE: "waiting"}, 0)
    for key in ("a", "b", "c"):
        state.patch(key, {"x": "1"}, 0)
    assert [state.get(key).version for key in ("old", "a", "b", "c")] == [1, 0, 0, 1]
    assert set(state.marked()) == {"old"}


def test_missing_folder_is_an_error_at_start(tmp_path):
    with pytest.raises(Unavailable, match="state_file"):
        StateFile(tmp_path / "none" / "state.json")
