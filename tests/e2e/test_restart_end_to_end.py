"""From a heap that breaks up to a job that has been restarted and goes on where it was; only the GPU is made up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.restart_rig import JOB, Host, check_that_no_step_was_lost, python_with_torch, ratio, trains_again
from monitoring import Prometheus, eventually, free_port
from restarter.restarter_process import Process, get

pytestmark = pytest.mark.real

TRIGGER = f'ALERTS{{alertname="GpuMemoryFragmented", alertstate="firing", job_name="{JOB}"}}'
RESTARTED = 'gpufrag_restarter_actions_total{kind="Process.gpufrag.dev",result="restarted"} 1.0'


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    python_with_torch()
    with ExitStack() as stack:
        yield Host(tmp_path, stack)


@pytest.mark.timeout(180)
def test_a_fragmented_job_saves_is_restarted_once_and_goes_on_from_that_step(host: Host) -> None:
    prometheus, restarter, sidecar = started(host)
    eventually(lambda: ratio(prometheus) > 4, "the heap of rank 1 breaks up")
    eventually(lambda: "restarted" in restarter.outcomes, "it is restarted")
    eventually(lambda: trains_again(host), "it trains again")
    eventually(lambda: ratio(prometheus) < 1.5, "the new heap is whole")
    eventually(lambda: not prometheus.query(TRIGGER), "the alert has ended")

    assert restarter.outcomes.count("started") == 1
    assert RESTARTED in get(restarter, "/metrics").text
    check_that_no_step_was_lost(host)
    assert host.doctor(sidecar, prometheus).keys() <= {"nvml"}, "the doctor finds nothing but that there is no GPU"


def started(host: Host) -> tuple[Prometheus, Process, int]:
    """Each needs the address of the next, and the last one that of the first but one: its port is chosen first."""
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
