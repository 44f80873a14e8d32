"""Reports of torch's own out-of-memory errors."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufrag import agent
from gpufrag.agent.torch.source import TorchSource
from gpufrag.sidecar.oom_files import read_all
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.oom_report import OomReport

torch = pytest.importorskip("torch")
MIB = 1 << 20
GIB = 1 << 30
CAP = 2 * GIB
EXPORTER = Path(agent.__file__).parents[2]


def _take(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of an agent in this process, which is limited to 2 GiB."""
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(CAP / torch.cuda.get_device_properties(0).total_memory)
    agent.start(TorchSource(torch, ErrorCounter()), folder=tmp_path)
    yield tmp_path
    agent.stop()
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def _report(folder: Path, size: int) -> OomReport:
    with pytest.raises(torch.cuda.OutOfMemoryError):
        _take(size)
    return read_all(folder, 1).reports[0]


def test_request_above_the_limit_is_reported(folder: Path) -> None:
    report = _report(folder, 3 * GIB)
    assert (report.cause, report.requested, report.device) == ("limit", 3 * GIB, 0)
    assert report.stack[0].file == __file__
    assert report.stack[0].function == "_take"
    assert report.measured.limit == pytest.approx(CAP, abs=512)


def test_reported_largest_allocatable_is_exact(folder: Path) -> None:
    pairs = (CAP - torch.cuda.memory_reserved()) // (20 * MIB)  # two share a segment; what ran before keeps something
    held = [_take(9 * MIB) for _ in range(2 * pairs)]
    del held[::2]
    report = _report(folder, 400 * MIB)
    assert report.cause == "fragmentation"
    largest = report.measured.largest_allocatable
    with pytest.raises(torch.cuda.OutOfMemoryError):
        _take(largest + 512)
    assert _take(largest).numel() == largest


def test_count_is_published_before_the_error_is_raised(folder: Path) -> None:
    _report(folder, 3 * GIB)
    sample = agent.latest()
    ooms = sample.devices[0].ooms
    assert (ooms.causes["limit"], ooms.last_requested) == (1, 3 * GIB)


def test_backward_error_shows_the_calling_line(folder: Path) -> None:
    """A thread of autograd allocates; no Python runs in it."""
    x = torch.ones(100 * MIB // 4, device="cuda", requires_grad=True)
    loss = (x * 2).sum()
    torch.cuda.empty_cache()
    held = [_take(20 * MIB) for _ in range((CAP - torch.cuda.memory_reserved()) // (20 * MIB))]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        loss.backward()
    del held
    report = read_all(folder, 1).reports[0]
    assert report.stack_of == "main"
    assert any(frame.function.endswith("shows_the_calling_line") for frame in report.stack)


def test_reports_of_repeated_errors_are_limited(folder: Path) -> None:
    began = time.perf_counter()
    for _ in range(300):
        with pytest.raises(torch.cuda.OutOfMemoryError):
            _take(3 * GIB)
    taken = time.perf_counter() - began
    reports = read_all(folder, 100).reports
    assert len(reports) == 8
    assert reports[0].number <= 8 + taken / 5 + 1


DIES = """
import torch
torch.empty(1 << 43, dtype=torch.uint8, device="cuda")
"""


def test_first_request_that_fails_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(DIES)
    path = os.pathsep.join(filter(None, [str(EXPORTER), os.environ.get("PYTHONPATH")]))
    surroundings = {"PYTHONPATH": path, "GPUFRAG_DIR": str(tmp_path / "shared"), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "gpufrag", "run", "--", sys.executable, str(script)]
    done = subprocess.run(command, env={**os.environ, **surroundings}, capture_output=True, text=True, timeout=110)
    assert "OutOfMemoryError" in done.stderr
    assert done.stderr.count("gpufrag: out of memory on device 0: capacity") == 1
    listed = subprocess.run(
        [sys.executable, "-m", "gpufrag", "oom", "list", "--json"],
        env={**os.environ, **surroundings}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    (record,) = json.loads(listed.stdout)
    assert (record["verdict"], record["place"]["line"]) == ("capacity", 3)


BEYOND_SEGMENT = """
import json, sys, torch, gpufrag
from pathlib import Path
from gpufrag.sidecar.oom_files import read_all
torch.zeros(1, device="cuda")
gpufrag.start(folder=sys.argv[1])
try:
    torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    (report,) = read_all(Path(sys.argv[1]), 1).reports
    print(json.dumps([report.cause, report.measured.largest_allocatable, str(error)]))
"""


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15),
    reason="expandable_segments_reserve is new in torch 2.15",
)
def test_request_beyond_an_expandable_segment_hit_a_limit(run_json: Callable[..., Any]) -> None:
    conf = "expandable_segments:True,expandable_segments_reserve:1.5G"
    cause, largest, message = run_json(BEYOND_SEGMENT, PYTORCH_CUDA_ALLOC_CONF=conf)
    assert "expandable-segment reserve of 1.50 GiB" in message
    assert (cause, largest) == ("limit", 1540 * MIB)  # in whole pages of 20 MiB
