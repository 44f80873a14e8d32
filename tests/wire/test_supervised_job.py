"""A supervised job and its files."""

from pathlib import Path

import pytest

from gpufrag.config.sidecar import FolderSettings
from gpufrag.errors import BadInput
from gpufrag.sidecar.processes import ProcessReader
from gpufrag.wire.folder import FileName
from gpufrag.wire.supervised_job import PAUSE, RECORD, SOCKET, JobFile, SupervisedJob, decode, encode


@pytest.mark.parametrize("suffix", [SOCKET, RECORD, PAUSE])
def test_file_name_round_trips(suffix: str) -> None:
    file = JobFile(FileName("node-1", 4711, 1_700_000_000_000), suffix)
    assert JobFile.parse(file.name) == file
    assert FileName.parse(file.name) is None


@pytest.mark.parametrize("name", ["a.job.sock", "h-1-2.sock", "h-1-2.job.json.tmp", ".h-1-2.job.json", "job.sock"])
def test_other_names_are_not_parsed(name: str) -> None:
    assert JobFile.parse(name) is None


def test_sidecar_ignores_supervisor_files(tmp_path: Path) -> None:
    for suffix in (SOCKET, RECORD, PAUSE):
        (tmp_path / f"h-1-2{suffix}").touch()
    reading = ProcessReader(tmp_path, FolderSettings()).read()
    assert (reading.ranks, sum(reading.skipped.values())) == ((), 0)


def test_job_round_trips() -> None:
    job = SupervisedJob("train", "ann", 1, 2, 3, 4, True, annotations={"a": "b"})
    assert decode(encode(job)) == job
    with pytest.raises(BadInput, match="not a supervised job"):
        decode({"name": 7})
