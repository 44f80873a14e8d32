"""Ranks save or defragment before a restart: simulated ranks, and real sidecars, one in each of two pods."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from checkpoint.simulated_ranks import job
from fake_source import RESULT
from gpufrag.checkpoint.protocol import IDLE, SAVED, CheckpointFailed, DefragmentationFailed
from gpufrag.config.sidecar import ControlSettings, NvmlSettings, ServeConfig
from gpufrag.errors import Unavailable
from gpufrag.restarter import server
from gpufrag.restarter.checkpoint import AgreedCheckpointer, Checkpoint
from gpufrag.restarter.defragment import Defragmented, Defragmenter
from gpufrag.restarter.kubernetes.backend import KubernetesBackend
from gpufrag.restarter.kubernetes.objects import Pod
from gpufrag.restarter.kubernetes.sidecars import Sidecars, ranks_of
from gpufrag.restarter.settings import AuthSettings, CheckpointSettings, DefragmentSettings, RestarterConfig
from gpufrag.sidecar.server import Sidecar
from live_ranks import PATIENCE, LiveRank, live_ranks, saves_at
from restarter.fake_api import manifests
from restarter.restarter_process import suspensions
from restarter.scene import scene
from restarter.worker_rig import LIVE, FakeTime, Rig, TimedRestarter, alert, finish
from running_server import running
from supervisor.supervised_process import eventually

SAVED_TEXT = "All 2 ranks saved at step 13 to checkpoint-13."
AWAY = "127.0.0.9"


def checkpointer(ranks) -> AgreedCheckpointer:
    """The clock of the simulation moves with every command."""

    def ask(wanted):
        ranks.now += 0.5
        answers = ranks.ask(wanted)
        ranks.step()
        return answers

    return AgreedCheckpointer(lambda job: ask, hold_s=30.0, clock=ranks.clock)


def await_release(ranks) -> None:
    eventually(lambda: ranks.asked[-1] == "release" and all(rank.promise.state == IDLE for rank in ranks.ranks))


def test_ranks_save_and_wait_for_the_restart():
    ranks = job(2)
    assert finish(checkpointer(ranks).save(None, 60.0)) == Checkpoint(SAVED_TEXT, saved=True, step=13)
    assert [rank.promise.state for rank in ranks.ranks] == [SAVED] * 2
    ranks.now += 31
    ranks.step()
    ranks.step()
    assert [rank.step for rank in ranks.ranks] == [14] * 2  # after their hold


def test_missing_callback_is_reported():
    result = finish(checkpointer(job(2, callback=False)).save(None, 60.0))
    assert (result.saved, "No rank has a checkpoint callback" in result.text) == (False, True)


def test_failing_callback_is_reported():
    ranks = job(2)
    ranks.ranks[1].breaks = True
    with pytest.raises(CheckpointFailed, match="rank 1 did not save: the callback raised"):
        finish(checkpointer(ranks).save(None, 60.0))


def test_checkpoint_ends_at_the_timeout():
    ranks = job(2, step_seconds=1000.0)
    ranks.step = lambda: None
    with pytest.raises(CheckpointFailed, match="not all ranks have saved within 3 s"):
        finish(checkpointer(ranks).save(None, 3.0))


def test_unreachable_ranks_are_a_failure():
    def unreachable(wanted):
        raise Unavailable("the API server is away")

    with pytest.raises(CheckpointFailed, match="the API server is away"):
        finish(AgreedCheckpointer(lambda job: unreachable, 30.0).save(None, 60.0))


def test_closing_the_checkpoint_lets_the_ranks_go():
    ranks = job(2)
    waiting = checkpointer(ranks).save(None, 60.0)
    while "at" not in ranks.asked:
        next(waiting)
    waiting.close()
    await_release(ranks)


def test_unused_checkpoint_lets_the_ranks_go():
    ranks = job(2)
    finish(checkpointer(ranks).save(None, 60.0)).let_go()
    await_release(ranks)


def test_closing_at_interpreter_exit_raises_nothing():
    agreed = checkpointer(job(2))
    waiting = agreed.save(None, 60.0)
    next(waiting)
    agreed._threads.shutdown()
    waiting.close()


@pytest.mark.parametrize(("callback", "outcome"), [(True, "started started"), (False, "refused checkpoint-failed")])
def test_worker_restarts_after_a_complete_checkpoint_only(callback, outcome):
    ranks = job(2)
    ranks.ranks[0].callback = callback
    rig = Rig(checkpointer=checkpointer(ranks)).send()

    def decided() -> bool:
        rig.turn(0.01)
        return outcome in rig.outcomes

    eventually(decided)
    assert rig.backend.suspensions == int(callback)
    assert (SAVED_TEXT in rig.backend.events[0].text) == callback


@dataclass
class Pods:
    """Two pods with two ranks each, on two addresses and one port."""

    ranks: list[LiveRank]
    pods: list[Pod]
    settings: CheckpointSettings

    def save(self) -> Checkpoint:
        ranks = ranks_of(lambda job: tuple(self.pods), self.settings)
        return finish(AgreedCheckpointer(ranks, hold_s=PATIENCE).save(None, PATIENCE))

    def defragment(self) -> Defragmented:
        ranks = ranks_of(lambda job: tuple(self.pods), self.settings)
        return finish(Defragmenter(ranks, DefragmentSettings()).run(None))


def sidecar_service(folder: Path, token: Path | None):
    config = replace(ServeConfig(nvml=NvmlSettings(enabled=False)), control=ControlSettings(token))
    return Sidecar(config, lambda config: folder, lambda: config).service()


@contextmanager
def two_pods(home: Path, token: Path | None, web: Path | None = None):
    port, ranks, pods = 0, [], []
    with ExitStack() as stack:
        for number in range(2):
            folder, address = home / f"pod-{number}", f"127.0.0.{number + 1}"
            for rank in (2 * number, 2 * number + 1):
                ranks.append(LiveRank(folder, rank, 4, saves_at))
                stack.callback(ranks[-1].close)
            service = sidecar_service(folder, token)
            port = stack.enter_context(running(service, listen_address=f"{address}:{port}", config_file=web)).port
            pods.append(Pod("ml", f"train-{number}", f"uid-{number}", phase="Running", ip=address))
        yield Pods(ranks, pods, CheckpointSettings(token_file=home / "token", port=port, call_timeout=PATIENCE))


@pytest.fixture
def token(tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef0123")
    return tmp_path / "token"


@pytest.fixture
def two(tmp_path, token):
    with two_pods(tmp_path, token) as made:
        yield made


def test_ranks_of_all_pods_save_at_one_step(two):
    two.pods.append(Pod("ml", "launcher", "uid-9", phase="Running", ip=AWAY))  # has no sidecar
    two.pods.append(Pod("ml", "ended", "uid-8", phase="Succeeded", ip=AWAY))
    saved = two.save()
    assert [rank.saved for rank in two.ranks] == [[saved.step]] * 4
    assert (saved.saved, saved.text) == (
        True,
        f"All 4 ranks saved at step {saved.step} to /checkpoints/{saved.step}.",
    )


def test_ranks_of_all_pods_defragment_at_one_step(two):
    for rank in two.ranks:
        rank.participant.defragment = lambda options: (RESULT,)
    done = two.defragment()
    assert done.enough
    assert "19.1 MiB moved on all 4 ranks at step" in done.text
    two.settings = replace(two.settings, token_file=None)
    with pytest.raises(DefragmentationFailed, match="its sidecar rejects the token"):
        two.defragment()


def test_annotated_job_on_the_api_server_is_defragmented_instead(tmp_path, token, monkeypatch):
    manifest = manifests.job(parallelism=1, completions=1)
    manifest["metadata"]["annotations"]["gpufrag.dev/defragment"] = "true"
    pods = KubernetesBackend.pods
    local = lambda self, job: tuple(replace(pod, ip="127.0.0.1") for pod in pods(self, job))  # noqa: E731
    monkeypatch.setattr(KubernetesBackend, "pods", local)
    with (
        live_ranks(tmp_path / "pod", [None, None]) as ranks,
        running(sidecar_service(tmp_path / "pod", token), listen_address="127.0.0.1:0") as sidecar,
        scene(manifest) as it,
    ):
        for rank in ranks:
            rank.participant.defragment = lambda options: (RESULT,)
        it.api.world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": manifests.meta("gpufrag-restarter")})
        checkpoint = CheckpointSettings(token_file=token, port=sidecar.port, call_timeout=PATIENCE)
        config, time = RestarterConfig(policy=LIVE, checkpoint=checkpoint), FakeTime()
        rig = TimedRestarter(server.kubernetes_platform(config, it.client, "ml", time.clock), time, config)
        rig.send(alert(it.pod.name))
        eventually(lambda: rig.turn(0.01) and rig.outcomes)
        assert rig.outcomes == ["defragmented defragmented"]
        assert [json.loads(one.body)["reason"] for one in it.api.sent("POST", "/events")] == ["Defragmented"]
        assert it.read().record.defragmented_s is not None
        assert (it.read().record.count, it.read().record.phase) == (0, None)
        assert suspensions(it.api) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda pods: pods.pop(), r"rank 2, 3 of 4: no answer"),
        (lambda pods: pods.append(replace(pods.pop(), ip=AWAY)), r"pod train-1: connection to port \d+ refused"),
        (lambda pods: pods.insert(0, replace(pods.pop(0), ip=None)), "pod train-0 has no IP address"),
        (lambda pods: pods.clear(), "the job has no running pod"),
    ],
    ids=["missing pod", "no listener", "no address", "no pod"],
)
def test_pod_that_cannot_be_asked_fails_the_checkpoint(two, change, text):
    change(two.pods)
    with pytest.raises(CheckpointFailed, match=text):
        two.save()
    assert all(rank.saved == [] for rank in two.ranks)


def test_wrong_token_is_reported(two, tmp_path):
    (tmp_path / "other").write_text("another-token-another")
    two.settings = replace(two.settings, token_file=tmp_path / "other")
    with pytest.raises(CheckpointFailed, match="its sidecar rejects the token"):
        two.save()


def test_sidecar_without_control_is_reported(tmp_path, token):
    with two_pods(tmp_path, None) as pods, pytest.raises(CheckpointFailed, match=r"set control.token_file"):
        pods.save()


def test_unreadable_ca_file_is_an_error_at_start(tmp_path):
    with pytest.raises(Unavailable, match="cannot use CA file"):
        Sidecars(CheckpointSettings(ca_file=tmp_path / "missing"))


def test_certificate_is_checked_by_its_name(tmp_path, token, certificate):
    web = tmp_path / "web.yml"
    web.write_text(f"tls_server_config: {{cert_file: {certificate.cert}, key_file: {certificate.key}}}")
    with two_pods(tmp_path, token, web) as pods:
        named = replace(pods.settings, ca_file=certificate.cert, server_name="127.0.0.1")
        pods.settings = replace(named, server_name="another.name")
        with pytest.raises(CheckpointFailed, match="CERTIFICATE_VERIFY_FAILED"):
            pods.save()
        pods.settings = named
        assert pods.save().saved


def test_check_of_the_config_reads_the_token(tmp_path, token):
    config = RestarterConfig(auth=AuthSettings(token), checkpoint=CheckpointSettings(token_file=token))
    server.check(config)
    with pytest.raises(Unavailable, match="missing: No such file"):
        server.check(replace(config, checkpoint=CheckpointSettings(token_file=tmp_path / "missing")))
