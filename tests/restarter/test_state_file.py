"""The file that remembers off Kubernetes: nothing is lost, and nobody overwrites what he has not seen."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufrag.errors import Unavailable
from gpufrag.restarter import state_file
from gpufrag.restarter.errors import Away, Conflict
from gpufrag.restarter.kubernetes.cluster import PHASE
from gpufrag.restarter.state_file import Entry, StateFile


@pytest.fixture
def state(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "state.json")


def test_what_is_written_is_read_by_another(state: StateFile, tmp_path: Path) -> None:
    assert state.get("a") == Entry()
    assert state.patch("a", {"x": "1", "y": None}, 0) == Entry(1, {"x": "1"})
    assert StateFile(tmp_path / "state.json").get("a") == Entry(1, {"x": "1"})
    assert state.patch("a", {"x": None}, None) == Entry(2, {})


def test_a_stale_version_changes_nothing(state: StateFile) -> None:
    state.patch("a", {"x": "1"}, 0)
    with pytest.raises(Conflict):
        state.patch("a", {"x": "2"}, 0)
    assert state.get("a").annotations == {"x": "1"}


def test_a_dry_run_changes_nothing(state: StateFile) -> None:
    assert state.patch("a", {"x": "1"}, 0, dry_run=True) == Entry(1, {"x": "1"})
    assert state.get("a") == Entry()


def test_of_many_at_once_one_wins(state: StateFile) -> None:
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
def test_a_file_that_is_none_restarts_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(Away, match="not what was written there"):
        StateFile(path).get("a")
    with pytest.raises(Away):
        StateFile(path).patch("a", {}, None)


def test_the_longest_idle_are_forgotten_and_those_under_way_are_not(
    state: StateFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "MOST", 2)
    state.patch("old", {PHASE: "waiting"}, 0)
    for key in ("a", "b", "c"):
        state.patch(key, {"x": "1"}, 0)
    assert [state.get(key).version for key in ("old", "a", "b", "c")] == [1, 0, 0, 1]
    assert set(state.marked()) == {"old"}


def test_a_folder_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="state_file"):
        StateFile(tmp_path / "none" / "state.json")
