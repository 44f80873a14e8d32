"""Torch's level of active memory, as every version tells it."""

from __future__ import annotations

import pytest

from fake_torch import VERSIONS, Machine, remove, torch_of
from gpufrag.agent.sources import TellsLevel
from gpufrag.agent.torch import stats as torch_stats
from gpufrag.agent.torch.source import TorchSource
from gpufrag.wire.error_counter import ErrorCounter
from helpers import golden_case_named


@pytest.mark.parametrize("version", VERSIONS)
def test_a_level_is_what_the_statistics_say(version: str) -> None:
    machine, trouble = Machine(version), ErrorCounter()
    source, stats = TorchSource(torch_of(machine), trouble), golden_case_named(machine.heaps[0]).raw["stats"]
    level = source.level(0)
    assert isinstance(source, TellsLevel)
    assert level is not None
    assert (level.active, level.peak_active) == (stats["active_bytes.all.current"], stats["active_bytes.all.peak"])
    assert level.allocations == machine.allocations
    assert trouble.counts == {}


@pytest.mark.parametrize("family", ["active_bytes", "allocation"])
def test_without_one_of_its_figures_there_is_no_level(family: str) -> None:
    figures = {"all": {"current": 1, "peak": 2, "allocated": 3}}
    stats = {"active_bytes": figures, "allocation": figures}
    assert torch_stats.level(stats) == (1, 3, 2)
    assert torch_stats.level({name: value for name, value in stats.items() if name != family}) is None


def test_other_allocators_tell_none() -> None:
    assert TorchSource(torch_of(Machine(backend="cudaMallocAsync")), ErrorCounter()).level(0) is None


def test_a_torch_without_statistics_tells_none() -> None:
    torch = torch_of(Machine())
    remove(torch, "cuda.memory_stats_as_nested_dict")
    assert TorchSource(torch, ErrorCounter()).level(0) is None
