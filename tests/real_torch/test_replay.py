"""`gpufrag replay` on recordings by torch releases' allocators, made without a GPU."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import largest_request
import pytest

from fake_cuda.releases import RELEASES, minor
from gpufrag.cli import main

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]  # the first test downloads torch
FIGURES = {
    "ooms": "num_ooms",
    "device_allocs": "num_device_alloc",
    "device_frees": "num_device_free",
    "peak_reserved": "reserved_bytes.all.peak",
    "peak_active": "active_bytes.all.peak",
}
PROGRAMS = 80


@pytest.mark.parametrize("release", RELEASES[-2:])
def test_random_programs_replay_exactly(
    run_programs, tmp_path: Path, capsys: pytest.CaptureFixture[str], release: str
) -> None:
    """Streams, blocks that wait for them, MemPools, CUDA graphs, limits, out-of-memory errors, all settings."""
    found = {}
    for conf, programs in largest_request.heaps(1, PROGRAMS, minor(release)).items():
        recordings = run_programs(release, [program.removesuffix("\nlargest") for program in programs], conf)
        for name, recording in recordings.items():
            path = tmp_path / f"{name}.json"
            path.write_text(json.dumps(recording))
            assert main(["replay", str(path), "--json"]) == 0
            if difference := _difference(json.loads(capsys.readouterr().out), recording):
                found[f"{name} {conf}"] = difference
    assert found == {}


def _difference(replayed: Mapping[str, Any], recording: Mapping[str, Any]) -> str | None:
    if not replayed["ends_as_recorded"] or replayed["newly_failed"]:
        return f"the end differs, {replayed['newly_failed']} requests fail"
    figures = {**replayed, **replayed["counters"]}
    different = [ours for ours, theirs in FIGURES.items() if figures[ours] != recording["stats"][theirs]]
    return ", ".join(f"{name} {figures[name]} is {recording['stats'][FIGURES[name]]}" for name in different) or None
