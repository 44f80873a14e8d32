"""The same on the fake API server, whose pod is a real job with a real sidecar."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest

from e2e.pod_runner import kubelet
from e2e.restart_rig import Host, check_that_no_step_was_lost, python_with_torch, ratio, trains_again
from monitoring import Prometheus, eventually, free_port
from restarter.fake_api import manifests
from restarter.fake_api.server import FakeApi, fake_api
from restarter.restarter_process import Process, suspensions

pytestmark = pytest.mark.real

RESTARTED = 'actions_total{kind="Job.batch",result="restarted"} 1.0'


@pytest.fixture
def host(tmp_path):
    python_with_torch()
    with ExitStack() as stack:
        yield Host(tmp_path, stack)


@pytest.fixture
def api():
    with fake_api() as one:
        one.world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": manifests.meta("gpufrag-restarter")})
        yield one


@pytest.mark.timeout(480)
def test_fragmented_job_is_suspended_once_and_continues(host, api):
    prometheus, restarters = started(host, api)
    api.world.apply(manifests.job(parallelism=1, completions=1))
    eventually(lambda: ratio(prometheus) > 4, "the heap of rank 1 breaks up")
    eventually(lambda: "restarted" in outcomes(restarters), "it is restarted")
    eventually(lambda: trains_again(host), "it trains again")
    eventually(lambda: ratio(prometheus) < 1.5, "the new heap is whole")

    assert suspensions(api) == [True, False]
    assert outcomes(restarters).count("started") == 1
    assert [RESTARTED in one.get("/metrics").text for one in restarters].count(True) == 1
    assert all(one.count('received_total{status="firing"}') >= 2 for one in restarters), (
        "each restarter received both alerts"
    )
    assert "gpufrag.dev/restart-phase" not in job(api)["metadata"]["annotations"]
    assert "failed" not in job(api)["status"]
    check_that_no_step_was_lost(host)


def started(host: Host, api: FakeApi) -> tuple[Prometheus, list[Process]]:
    """Two Alertmanagers without gossip and two restarters: every alert arrives twice at each."""
    ports, sidecar = (free_port(), free_port()), host.start_sidecar()

    def run(pod: str) -> AbstractContextManager[Any]:
        host.discover(sidecar, namespace="ml", pod=pod)
        return host.run_job()

    prometheus = host.start_prometheus(*(host.start_alertmanager(name, *ports) for name in ("one", "two")))
    kubeconfig = str(api.write_kubeconfig(host.folder / "kubeconfig"))
    config = {
        "prometheus": {"url": prometheus.url},
        "checkpoint": {"token_file": str(host.folder / "control-token"), "port": sidecar},
    }
    restarters = [host.start_restarter(port, "--kubeconfig", kubeconfig, **config) for port in ports]
    host.stack.enter_context(kubelet(api, run))
    return prometheus, restarters


def outcomes(restarters: list[Process]) -> list[str]:
    return [outcome for restarter in restarters for outcome in restarter.outcomes]


def job(api: FakeApi) -> dict[str, Any]:
    return api.world.get("batch/v1", "Job", "train")
