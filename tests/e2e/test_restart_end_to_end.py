"""From a fragmented heap to a restarted job that continues from its checkpoint; only the GPU is simulated."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from e2e.restart_rig import JOB, Host, check_that_no_step_was_lost, python_with_torch, ratio, trains_again
from monitoring import Prometheus, eventually, free_port
from restarter.restarter_process import Process

pytestmark = pytest.mark.real

TRIGGER = f'ALERTS{{alertname="GpuMemoryFragmented", alertstate="firing", job_name="{JOB}"}}'


@pytest.fixture
def host(tmp_path):
    python_with_torch()
    with ExitStack() as stack:
        yield Host(tmp_path, stack)


@pytest.mark.timeout(480)
def test_fragmented_job_restarts_once_from_its_checkpoint(host):
    prometheus, restarter, sidecar = started(host)
    eventually(lambda: ratio(prometheus) > 4, "the heap of rank 1 breaks up")
    eventually(lambda: "restarted" in restarter.outcomes, "it is restarted")
    eventually(lambda: trains_again(host), "it trains again")
    eventually(lambda: ratio(prometheus) < 1.5, "the new heap is whole")
    eventually(lambda: not prometheus.query(TRIGGER), "the alert has ended")

    assert restarter.outcomes.count("started") == 1
    assert restarter.count('actions_total{kind="process",result="restarted"}') == 1
    check_that_no_step_was_lost(host)
    complaints = host.doctor(sidecar, prometheus)
    assert "built without GPU support" in complaints.pop("injection"), "this torch is a CPU build"
    assert complaints.keys() <= {"nvml"}, complaints


def started(host: Host) -> tuple[Prometheus, Process, int]:
    """Each program needs the address of the next, so the restarter's port is chosen first."""
    port = free_port()
    prometheus = host.start_prometheus(host.start_alertmanager("alertmanager", port))
    sidecar = host.start_sidecar()
    host.discover(sidecar)
    restarter = host.start_restarter(
        port,
        target="process",
        process={"folder": str(host.folder / "agents")},
        state_file=str(host.folder / "state.json"),
        prometheus={"url": prometheus.url},
    )
    host.stack.enter_context(host.run_job("--restartable", "--name", JOB, "--grace", "10s"))
    return prometheus, restarter, sidecar
