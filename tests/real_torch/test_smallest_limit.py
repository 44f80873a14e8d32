"""The smallest limit with an anchor, and after empty_cache, against the allocator of a torch release."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_cuda.releases import RELEASES
from gpufrag.model.settings import SEGMENT_GRID, Settings
from gpufrag.model.trace.whatif import EMPTIED, Start, on_any_device, possible_anchors, read_run, smallest_limit
from gpufrag.snapshot_file.recording import Recording, read_recording

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]  # the first test downloads torch
MIB = 1 << 20
PROGRAMS = 4
HEAD = "program p total=85899345920"
ANCHOR = 1_000_000
"""The number of the anchor's block."""


def requests(seed: int) -> list[str]:
    """A job's allocations and frees, mostly on the default stream."""

    def lines() -> Iterator[str]:
        rng = random.Random(seed)
        live: list[int] = []
        for block in range(400):
            while live and rng.random() < 0.45:
                yield f"free {live.pop(rng.randrange(len(live)))}"
            size, stream = int(rng.randrange(512, 90 * MIB) ** rng.choice((1, 0.9))), int(rng.random() < 0.05)
            yield f"malloc {block} {size} {stream}"
            live.append(block)

    return list(lines())


@pytest.fixture(params=[RELEASES[-1], "2.11.0", "2.4.1"])
def release(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def record(run_programs, release: str, tmp_path: Path):
    def record(lines: list[str], conf: str = "") -> Recording:
        path = tmp_path / "recorded.json"
        path.write_text(json.dumps(run_programs(release, ["\n".join([HEAD, *lines])], conf)["p"]))
        return read_recording(path)

    return record


@pytest.fixture
def succeeds(run_programs, release: str):
    def succeeds(lines: list[str], conf: str = "") -> bool:
        return run_programs(release, ["\n".join([HEAD, *lines])], conf)["p"]["stats"]["num_ooms"] == 0

    return succeeds


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_smallest_limit_with_an_anchor_is_exact(record, succeeds, seed: int) -> None:
    lines = requests(seed)
    recorded = record(lines)
    run = on_any_device(read_run(recorded.events, recorded.end, recorded.before, recorded.limit))
    defaults = Settings(torch=recorded.end.settings.torch)
    sizes = possible_anchors(run, defaults)
    assert len(sizes) > 1
    for size in sizes:
        limit = smallest_limit(run, defaults, start=Start(anchor=size))
        assert limit is not None
        assert succeeds(anchored(lines, size, limit)), (size, limit)
        assert not succeeds(anchored(lines, size, limit - SEGMENT_GRID)), (size, limit)


def anchored(lines: list[str], size: int, limit: int) -> list[str]:
    """The program as with the agent's anchor, which is not reserved above the limit."""
    anchor = [f"malloc {ANCHOR} {size}", f"free {ANCHOR}"] if size <= limit else []
    return [f"limit {limit}", *anchor, *lines]


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_smallest_limit_after_empty_cache_is_exact(record, succeeds, seed: int, conf: str) -> None:
    """In these programs. A step does not show up to 1 MiB of an older block that it frees (gpufrag.model.step)."""
    lines = requests(seed)
    before, step = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    first = len(record(before, conf).events)
    recorded = record(lines, conf)
    run = on_any_device(read_run(recorded.events[first:], recorded.end, recorded.before, recorded.limit))
    limit = smallest_limit(run, recorded.end.settings, start=EMPTIED)
    assert limit is not None
    assert succeeds([*before, "empty_cache", f"limit {limit}", *step], conf)
    assert not succeeds([*before, "empty_cache", f"limit {limit - SEGMENT_GRID}", *step], conf)
