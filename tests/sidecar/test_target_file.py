"""The file with which a Prometheus without service discovery finds the sidecar."""

import json
import os
import signal
import subprocess
import sys

import pytest

from gpufrag.errors import Unavailable
from gpufrag.sidecar import target_file
from gpufrag.web.listen import Address

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "train", "SLURM_CLUSTER_NAME": "big"}


def test_target_file_exists_while_serving(tmp_path):
    with target_file.kept(tmp_path, SLURM, host="gpu-1") as announce:
        assert list(tmp_path.iterdir()) == []
        announce(Address("0.0.0.0", 9836))
        (path,) = tmp_path.iterdir()
        labels = {"job_name": "train-4711", "slurm_job_id": "4711", "cluster": "big"}
        assert json.loads(path.read_text()) == [{"targets": ["gpu-1:9836"], "labels": labels}]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("address", "target"), [
    (Address("", 1), "gpu-1:1"), (Address("::", 1), "gpu-1:1"), (Address("10.0.0.7", 1), "10.0.0.7:1"),
    (Address("fd00::7", 1), "[fd00::7]:1"),
])  # fmt: skip
def test_target_is_a_reachable_address(tmp_path, address, target):
    with target_file.kept(tmp_path, {}, host="gpu-1") as announce:
        announce(address)
        (path,) = tmp_path.glob("*.json")
        assert json.loads(path.read_text()) == [{"targets": [target], "labels": {}}]


def test_missing_target_folder_is_an_error(tmp_path):
    with target_file.kept(tmp_path / "none", {}) as announce, pytest.raises(Unavailable, match="--write-target"):
        announce(Address("127.0.0.1", 1))


def test_sidecar_deletes_its_target_file(tmp_path):
    (tmp_path / "agents").mkdir()
    (tmp_path / "targets").mkdir()
    flags = ["--folder", tmp_path / "agents", "--port", "0", "--no-nvml", "--write-target", tmp_path / "targets"]
    command = [sys.executable, "-m", "gpufrag", "serve", *flags]
    with subprocess.Popen(command, env=os.environ | SLURM, stderr=subprocess.PIPE, text=True) as sidecar:
        assert sidecar.stderr
        next(line for line in sidecar.stderr if "listening" in line)
        (path,) = (tmp_path / "targets").glob("*.json")
        assert json.loads(path.read_text())[0]["labels"]["slurm_job_id"] == "4711"
        sidecar.send_signal(signal.SIGTERM)
        assert sidecar.wait(timeout=20) == 0
    assert list((tmp_path / "targets").iterdir()) == []
