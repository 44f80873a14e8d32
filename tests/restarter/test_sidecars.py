"""The restarter asks ranks to save or to defragment through real sidecars, one in each of two pods."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fake_source import RESULT
from gpufrag.checkpoint.protocol import CheckpointFailed, DefragmentationFailed
from gpufrag.config.sidecar import ControlSettings, NvmlSettings, ServeConfig
from gpufrag.errors import Unavailable
from gpufrag.restarter import server
from gpufrag.restarter.backend import Job
from gpufrag.restarter.checkpoint import AgreedCheckpointer, Checkpoint
from gpufrag.restarter.clock import Clock
from gpufrag.restarter.defragment import Defragmented, Defragmenter
from gpufrag.restarter.kubernetes.backend import KubernetesBackend
from gpufrag.restarter.kubernetes.objects import Pod
from gpufrag.restarter.kubernetes.sidecars import Sidecars, ranks_of
from gpufrag.restarter.settings import (
    AuthSettings,
    CheckpointSettings,
    DefragmentSettings,
    PolicySettings,
    RestarterConfig,
)
from gpufrag.sidecar.server import Sidecar
from live_ranks import PATIENCE, LiveRank, live_ranks, saves_at
from restarter.fake_api import manifests
from restarter.restarter_process import suspensions
from restarter.scene import pod_alert, scene
from running_server import running

TOKEN = "0123456789abcdef0123"
JOB = Job("Job.batch", "Job.batch ml/train", "uid", {}, "")


@dataclass
class Pods:
    """Two pods with two ranks each, on two addresses and one port."""

    ranks: list[LiveRank]
    pods: list[Pod]
    settings: CheckpointSettings

    def save(self) -> Checkpoint:
        ranks = ranks_of(lambda job: tuple(self.pods), self.settings)
        waiting = AgreedCheckpointer(ranks, hold_s=PATIENCE).save(JOB, PATIENCE)
        while True:
            try:
                next(waiting)
            except StopIteration as end:
                result: Checkpoint = end.value
                return result


def _sidecar(folder: Path, token: Path | None) -> Sidecar:
    config = replace(ServeConfig(nvml=NvmlSettings(enabled=False)), control=ControlSettings(token))
    return Sidecar(config, lambda config: folder, lambda: config)


@contextmanager
def _two_pods(home: Path, token: Path | None, web: Path | None = None) -> Iterator[Pods]:
    port, ranks, pods = 0, [], []
    with ExitStack() as stack:
        for number in range(2):
            folder, address = home / f"pod-{number}", f"127.0.0.{number + 1}"
            for rank in (2 * number, 2 * number + 1):
                ranks.append(LiveRank(folder, rank, 4, saves_at))
                stack.callback(ranks[-1].close)
            service = _sidecar(folder, token).service()
            port = stack.enter_context(running(service, listen_address=f"{address}:{port}", config_file=web)).port
            pods.append(Pod("ml", f"train-{number}", f"uid-{number}", phase="Running", ip=address))
        settings = CheckpointSettings(token_file=home / "token", port=port, call_timeout=PATIENCE)
        yield Pods(ranks, pods, settings)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(TOKEN)
    return tmp_path / "token"


@pytest.fixture
def two(tmp_path: Path, token: Path) -> Iterator[Pods]:
    with _two_pods(tmp_path, token) as made:
        yield made


def test_ranks_of_all_pods_save_at_one_step(two: Pods) -> None:
    saved = two.save()
    assert saved.saved
    assert [rank.saved for rank in two.ranks] == [[saved.step]] * 4
    assert saved.text == f"All 4 ranks saved at step {saved.step} to /checkpoints/{saved.step}."


def _run(waiting: Generator[float, None, Defragmented]) -> Defragmented:
    while True:
        try:
            next(waiting)
        except StopIteration as end:
            result: Defragmented = end.value
            return result


def test_ranks_of_all_pods_defragment_at_one_step(two: Pods) -> None:
    for rank in two.ranks:
        rank.participant.defragment = lambda options: (RESULT,)
    defragmenter = Defragmenter(ranks_of(lambda job: tuple(two.pods), two.settings), DefragmentSettings())
    done = _run(defragmenter.run(JOB))
    assert done.enough
    assert "19.1 MiB moved on all 4 ranks at step" in done.text
    two.settings = replace(two.settings, token_file=None)
    denied = Defragmenter(ranks_of(lambda job: tuple(two.pods), two.settings), DefragmentSettings())
    with pytest.raises(DefragmentationFailed, match="its sidecar rejects the token"):
        _run(denied.run(JOB))


def test_annotated_job_on_the_api_server_is_defragmented_instead(
    tmp_path: Path, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = manifests.job(parallelism=1, completions=1)
    manifest["metadata"]["annotations"]["gpufrag.dev/defragment"] = "true"
    pods = KubernetesBackend.pods
    monkeypatch.setattr(
        KubernetesBackend, "pods", lambda self, job: tuple(replace(pod, ip="127.0.0.1") for pod in pods(self, job))
    )
    with (
        live_ranks(tmp_path / "pod", [None, None]) as ranks,
        running(_sidecar(tmp_path / "pod", token).service(), listen_address="127.0.0.1:0") as sidecar,
        scene(manifest) as it,
    ):
        for rank in ranks:
            rank.participant.defragment = lambda options: (RESULT,)
        it.api.world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": manifests.meta("gpufrag-restarter")})
        config = RestarterConfig(
            policy=PolicySettings(dry_run=False, namespaces=("ml",)),
            checkpoint=CheckpointSettings(token_file=token, port=sidecar.port, call_timeout=PATIENCE),
        )
        platform = server.kubernetes_platform(config, it.client, "ml", Clock())
        worker = server.assemble(config, platform, stream=(stream := io.StringIO())).worker
        worker.offer([pod_alert(it.pod.name)])
        deadline = time.monotonic() + PATIENCE
        while not stream.getvalue():
            worker.turn()
            assert time.monotonic() < deadline
        assert json.loads(stream.getvalue())["outcome"] == "defragmented"
        assert [json.loads(one.body)["reason"] for one in it.api.sent("POST", "/events")] == ["Defragmented"]
        assert it.read().record.defragmented_s is not None
        assert (it.read().record.count, it.read().record.phase) == (0, None)
        assert suspensions(it.api) == []


def test_launcher_without_a_sidecar_is_ignored(two: Pods) -> None:
    two.pods.append(Pod("ml", "launcher", "uid-9", phase="Running", ip="127.0.0.9"))
    two.pods.append(Pod("ml", "ended", "uid-8", phase="Succeeded", ip="127.0.0.9"))
    assert two.save().saved


def test_missing_pod_is_noticed(two: Pods) -> None:
    del two.pods[1]
    with pytest.raises(CheckpointFailed, match=r"rank 2, 3 of 4: no answer"):
        two.save()
    assert all(rank.saved == [] for rank in two.ranks)


def test_pod_without_a_listener_is_named(two: Pods) -> None:
    two.pods[1] = replace(two.pods[1], ip="127.0.0.9")
    with pytest.raises(CheckpointFailed, match=r"pod train-1: connection to port \d+ refused"):
        two.save()


def test_wrong_token_is_reported(two: Pods, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("another-token-another")
    two.settings = replace(two.settings, token_file=tmp_path / "other")
    with pytest.raises(CheckpointFailed, match="its sidecar rejects the token"):
        two.save()


def test_sidecar_without_control_is_reported(tmp_path: Path, token: Path) -> None:
    with _two_pods(tmp_path, None) as pods, pytest.raises(CheckpointFailed, match=r"set control.token_file"):
        pods.save()


def test_pods_without_an_address_are_reported(two: Pods) -> None:
    two.pods[:] = [replace(pod, ip=None) for pod in two.pods]
    with pytest.raises(CheckpointFailed, match="pod train-0 has no IP address"):
        two.save()
    two.pods[:] = [replace(pod, phase="Failed") for pod in two.pods]
    with pytest.raises(CheckpointFailed, match="the job has no running pod"):
        two.save()


def test_unreadable_ca_file_is_an_error_at_start(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot use CA file"):
        Sidecars(CheckpointSettings(ca_file=tmp_path / "missing"))


def test_certificate_is_checked_by_its_name(tmp_path: Path, token: Path, certificate: Any) -> None:
    web = tmp_path / "web.yml"
    web.write_text(f"tls_server_config: {{cert_file: {certificate.cert}, key_file: {certificate.key}}}")
    with _two_pods(tmp_path, token, web) as pods:
        named = replace(pods.settings, ca_file=certificate.cert, server_name="127.0.0.1")
        pods.settings = replace(named, server_name="another.name")
        with pytest.raises(CheckpointFailed, match="CERTIFICATE_VERIFY_FAILED"):
            pods.save()
        pods.settings = named
        assert pods.save().saved


def test_check_of_the_config_reads_the_token(tmp_path: Path, token: Path) -> None:
    server.check(RestarterConfig(auth=AuthSettings(token), checkpoint=CheckpointSettings(token_file=token)))
    with pytest.raises(Unavailable, match="missing: No such file"):
        server.check(
            RestarterConfig(auth=AuthSettings(token), checkpoint=CheckpointSettings(token_file=tmp_path / "missing"))
        )
