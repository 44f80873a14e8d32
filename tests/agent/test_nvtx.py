"""GPUFRAG_NVTX=1: what the agent does appears as ranges of torch's own binding, and a refusal switches them off."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from fake_torch import VERSIONS, Machine, torch_of
from gpufrag.agent.torch.api import TorchSurface
from gpufrag.agent.torch.nvtx import NvtxRanges
from gpufrag.agent.torch.source import TorchSource
from gpufrag.wire.error_counter import ErrorCounter


class Nvtx:
    """Stands in for torch.cuda.nvtx."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.depth = 0

    def range_push(self, name: str) -> int:
        self.calls.append(name)
        self.depth += 1
        return self.depth - 1

    def range_pop(self) -> int:
        self.depth -= 1
        return self.depth

    def range_start(self, name: str) -> int:
        self.calls.append(f"start {name}")
        return 7

    def range_end(self, number: int) -> None:
        self.calls.append(f"end {number}")


@pytest.fixture
def torch() -> ModuleType:
    torch = torch_of(Machine(VERSIONS[-1]))
    torch.cuda.nvtx = Nvtx()
    return torch


def source(torch: ModuleType, errors: ErrorCounter, **environment: str) -> TorchSource:
    return TorchSource(torch, errors, environment)


def test_samples_and_recordings_are_ranges(torch: ModuleType) -> None:
    one = source(torch, ErrorCounter(), GPUFRAG_NVTX="1")
    one.read()
    one.capture()
    assert one.start_recording(1000) is None
    one.finish_recording(read=True)
    assert torch.cuda.nvtx.calls == [
        "gpufrag: sample",
        "gpufrag: snapshot",
        "start gpufrag: step recording",
        "end 7",
        "gpufrag: reading of a step recording",
    ]
    assert torch.cuda.nvtx.depth == 0


def test_oom_report_is_a_range_although_it_fails(torch: ModuleType) -> None:
    errors = ErrorCounter()
    one = source(torch, errors, GPUFRAG_NVTX="1")
    one.read()

    def fail(fault: object) -> None:
        raise ValueError("in the report")

    one.watch_ooms(fail)
    one._observer(0, 1, 2, 3)
    assert torch.cuda.nvtx.calls[-1] == "gpufrag: OOM report"
    assert torch.cuda.nvtx.depth == 0


@pytest.mark.parametrize("environment", [{}, {"GPUFRAG_NVTX": "0"}])
def test_off_by_default(torch: ModuleType, environment: dict[str, str]) -> None:
    one = source(torch, ErrorCounter(), **environment)
    one.read()
    one.start_recording(1000)
    one.finish_recording(read=True)
    assert torch.cuda.nvtx.calls == []


def test_refusal_is_counted_once_and_switches_off(torch: ModuleType) -> None:
    """A torch without NVTX raises at each call."""

    def refuse(name: str) -> int:
        raise RuntimeError("NVTX functions not installed")

    torch.cuda.nvtx = SimpleNamespace(range_push=refuse)
    errors = ErrorCounter()
    ranges = NvtxRanges(TorchSurface(torch, errors), errors, on=True)
    for _ in range(3):
        with ranges.range("sample"):
            pass
    assert errors.counts == {"nvtx": 1}


@pytest.mark.real
def test_real_binding_takes_the_calls() -> None:
    """A CPU build of torch has the functions too; without NVTX in it they raise RuntimeError."""
    real = pytest.importorskip("torch", reason="no torch: its NVTX binding was NOT called")
    errors = ErrorCounter()
    ranges = NvtxRanges(TorchSurface(real, errors), errors, on=True)
    with ranges.range("sample"):
        ranges.recording_started()
        ranges.recording_ended()
    assert set(errors.counts) <= {"nvtx"}
    assert not real.cuda.is_initialized()
