"""Which process this is, by the launchers' variables."""

import os
import time
from itertools import pairwise
from pathlib import Path

import pytest

from gpufrag.agent.identity import LAUNCHERS, Launcher, identify, with_rank
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import ProcessSample, decode, encode
from helpers import TESTS


def _places(environment: dict[str, str]) -> tuple[int | None, int | None, int | None]:
    found = identify(environment)
    return found.rank, found.local_rank, found.world_size


def _variables(launcher: Launcher, *values: str) -> dict[str, str]:
    return {name: value for name, value in zip(launcher[1:], values) if name}


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
def test_rank_comes_from_each_launcher(launcher: Launcher) -> None:
    found = _places(_variables(launcher, "5", "1", "8"))
    assert found == (5, 1 if launcher.local_rank else None, 8 if launcher.world_size else None)


@pytest.mark.parametrize(("first", "second"), list(pairwise(LAUNCHERS)))
def test_values_of_launchers_are_not_mixed(first: Launcher, second: Launcher) -> None:
    both = _variables(second, "7", "7", "7") | {first.rank: "0"}
    assert _places(both) == (0, None, None)


@pytest.mark.parametrize("value", ["", "-1", "one", "0x1", " "])
def test_invalid_rank_is_none(value: str) -> None:
    assert _places({"RANK": value, "WORLD_SIZE": value}) == (None, None, None)
    assert _places({"RANK": value, "SLURM_PROCID": "3"}) == (3, None, None)


def test_docs_list_the_launchers_in_order() -> None:
    page = (TESTS.parent / "docs" / "agent.md").read_text()
    rows = ["| " + " | ".join(f"`{name}`" if name else "" for name in launcher[1:]) for launcher in LAUNCHERS]
    places = [page.find(row.replace("|  |", "| |").rstrip()) for row in rows]
    assert -1 not in places
    assert places == sorted(places)


def test_rank_set_late_is_found() -> None:
    before = identify({})
    after = with_rank(before, {"RANK": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "4"})
    assert (after.rank, after.start) == (2, before.start)
    assert with_rank(before, {}) == before


def test_pid_and_start_are_the_kernels() -> None:
    found = identify({})
    assert found.pid == os.getpid()
    assert 0 <= time.time() - found.start < 86_400
    assert found.start == identify({}).start


def test_command_with_brackets_is_parsed(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    fields = " ".join(str(n) for n in range(4, 53))
    (tmp_path / "self" / "stat").write_text(f"7 (a) S 1 (b) 99) S {fields}")
    (tmp_path / "stat").write_text("cpu 1 2 3\nbtime 1000\n")
    assert identify({}, tmp_path).start == 1000 + 22 / os.sysconf("SC_CLK_TCK")


def test_start_without_proc_is_now(tmp_path: Path) -> None:
    assert abs(identify({}, tmp_path / "none").start - time.time()) < 60


@pytest.mark.parametrize("value", ["1" + "0" * 19, "9" * 5000, "٣" * 5000])
def test_number_too_long_for_a_sample_is_absent(value: str) -> None:
    errors = ErrorCounter()
    found = identify({"RANK": "3", "WORLD_SIZE": value}, errors=errors)
    assert (found.rank, found.world_size) == (3, None)
    assert errors.counts == {"identity": 1}
    assert _places({"RANK": value}) == (None, None, None)
    assert decode(encode(ProcessSample(found, 1.0))).identity == found


def test_largest_number_is_kept() -> None:
    found = identify({"RANK": "9" * 19})
    assert decode(encode(ProcessSample(found, 1.0))).identity.rank == 10**19 - 1
