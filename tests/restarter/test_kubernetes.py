"""The adapter on a server that fails: how each failure is told, and that none lasts."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightkube.config.kubeconfig import KubeConfig

from gpufrag.errors import UsageError
from gpufrag.restarter import kubernetes
from gpufrag.restarter.cluster import PHASE, GroupKind, Ref
from gpufrag.restarter.errors import Away, ClusterError, Denied, NotFound, TooMany
from gpufrag.restarter.kinds import JOB, JOB_SET
from gpufrag.restarter.kubernetes import KubernetesCluster, connect
from restarter.fake_api import manifests
from restarter.fake_api.faults import CUT, STORM, Fault
from restarter.fake_api.server import TOKEN, FakeApi, fake_api
from restarter.restarting import connected

NAME = "train"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as one:
        one.world.apply(manifests.job())
        yield one


@pytest.fixture
def cluster(api: FakeApi) -> Iterator[KubernetesCluster]:
    with contextlib.closing(connected(api)) as one:
        yield one


def pod_name(api: FakeApi) -> str:
    name: str = api.world.pods()[0]["metadata"]["name"]
    return name


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        (STORM, Away, "answered 503"),
        (CUT, Away, "no answer"),
        (Fault(429, {"Retry-After": "7"}), TooMany, "answered 429"),
        (Fault(401), Denied, "answered 401"),
        (Fault(200, body=b"<html>"), Away, "is it an API server"),
        (Fault(200, body=b"{}"), Away, "no object"),
        (Fault(200, body=b"[]"), Away, "no object"),
        (Fault(302, {"Location": "http://127.0.0.1:1/"}), ClusterError, "answered 302"),
    ],
    ids=lambda one: one if isinstance(one, str) else None,
)
def test_a_failure_is_told_and_the_next_call_works(
    api: FakeApi, cluster: KubernetesCluster, fault: Fault, kind: type[ClusterError], told: str
) -> None:
    api.faults.next(1, fault)
    with pytest.raises(kind, match=told):
        cluster.get_pod("ml", pod_name(api))
    assert cluster.get_pod("ml", pod_name(api)).ready


def test_no_call_is_tried_again_by_itself(api: FakeApi, cluster: KubernetesCluster) -> None:
    """Only who called knows whether a second try is still right."""
    api.faults.always(STORM)
    for _ in range(3):
        with pytest.raises(Away):
            cluster.get_pod("ml", "x")
    assert [one.code for one in api.log] == [503] * 3


def test_a_server_that_does_not_answer_is_given_up(api: FakeApi) -> None:
    never = threading.Event()
    api.faults.always(Fault(200, wait=never))
    hasty = KubernetesCluster(api.config(), timeout_s=0.1, trust_env=False)
    with contextlib.closing(hasty), pytest.raises(Away, match=r"no answer: .*timed out"):
        hasty.get_pod("ml", "x")
    never.set()


def test_an_answer_that_comes_drop_by_drop_is_given_up(api: FakeApi) -> None:
    """Each wait is short, their sum is not: the clock here runs ahead of the bytes."""
    ticks = iter(range(0, 1000, 30))
    patient = KubernetesCluster(api.config(), timeout_s=10, trust_env=False, clock=lambda: float(next(ticks)))
    with contextlib.closing(patient), pytest.raises(Away, match="not read beyond 10 s"):
        patient.get_pod("ml", pod_name(api))


def test_an_answer_that_is_too_large_is_not_kept(
    api: FakeApi, cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "MAX_ANSWER", 100)
    with pytest.raises(Away, match="no end"):
        cluster.get_pod("ml", pod_name(api))


def test_a_server_that_is_away_comes_back(api: FakeApi, cluster: KubernetesCluster) -> None:
    api.faults.always(CUT)
    for _ in range(20):
        with pytest.raises(Away):
            cluster.whoami()
    api.faults.clear()
    assert cluster.whoami() == "system:serviceaccount:gpufrag:restarter"


def test_nobody_at_the_address() -> None:
    with fake_api() as gone:
        config = gone.config()
    lonely = KubernetesCluster(config, trust_env=False)
    with contextlib.closing(lonely), pytest.raises(Away, match="refused"):
        lonely.whoami()


@pytest.mark.parametrize("name", ["../secrets/x", "a/b", "a b", "A", "", "a" * 254, "é", "x?watch=1", "-", "..", "a\n"])
def test_a_name_that_nothing_can_have_never_reaches_a_url(api: FakeApi, cluster: KubernetesCluster, name: str) -> None:
    for namespace, pod in (("ml", name), (name, "x")):
        with pytest.raises(NotFound, match="nothing can have that name"):
            cluster.get_pod(namespace, pod)
    assert api.log == []


def test_every_writing_call_asks_for_strict_fields(api: FakeApi, cluster: KubernetesCluster) -> None:
    cluster.evict(cluster.get_pod("ml", pod_name(api)), dry_run=True)
    written = [one for one in api.log if one.method != "GET"]
    assert [one.query for one in written] == [{"fieldValidation": "Strict", "dryRun": "All"}]


def test_a_long_list_is_read_page_by_page(
    api: FakeApi, cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "PAGE", 2)
    for number in range(5):
        job = manifests.job(f"more-{number}")
        job["metadata"]["annotations"][PHASE] = "x"
        api.world.apply(job, settle=False)
    assert [one.name for one in cluster.list_marked(JOB, "ml")] == [f"more-{number}" for number in range(5)]
    assert len([one for one in api.log if one.path.endswith("/jobs")]) == 3


def test_a_kind_that_the_cluster_lacks_has_no_owners(cluster: KubernetesCluster) -> None:
    assert cluster.list_marked(GroupKind("nobody.example.com", "Job"), "ml") == ()


def test_a_kind_of_another_version_is_found_all_the_same(
    api: FakeApi, cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a job that was left suspended would be passed over after an upgrade of its operator."""
    job_set = manifests.job_set()
    job_set["metadata"]["annotations"][PHASE] = "x"
    api.world.apply(job_set)
    monkeypatch.setitem(kubernetes.RESOURCES, JOB_SET, kubernetes.RESOURCES[JOB_SET]._replace(version="v1alpha1"))  # type: ignore[index]
    (found,) = cluster.list_marked(JOB_SET, "ml")
    assert found.group_version == "jobset.x-k8s.io/v1alpha2"


@pytest.fixture
def in_a_pod(tmp_path: Path, certificate: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeApi, Path]]:
    """The API over HTTPS, and the folder in which a pod finds its token and whom to trust."""
    (tmp_path / "namespace").write_text("gpufrag")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "ca.crt").write_bytes(certificate.cert.read_bytes())
    with fake_api(certificate.cert, certificate.key) as api:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
        yield api, tmp_path


def from_pod(folder: Path) -> KubernetesCluster:
    config = KubeConfig.from_service_account(folder).get()
    assert config is not None
    return KubernetesCluster(config, trust_env=False)


def test_a_pod_finds_its_cluster(in_a_pod: tuple[FakeApi, Path]) -> None:
    with contextlib.closing(from_pod(in_a_pod[1])) as cluster:
        assert cluster.whoami() == "system:serviceaccount:gpufrag:restarter"


def test_a_token_that_was_renewed_is_read_again_in_the_same_call(in_a_pod: tuple[FakeApi, Path]) -> None:
    api, folder = in_a_pod
    with contextlib.closing(from_pod(folder)) as cluster:
        cluster.whoami()
        api.users["renewed"] = api.users.pop(TOKEN)
        with pytest.raises(Denied, match="renew them"):
            cluster.whoami()
        (folder / "token").write_text("renewed")
        assert cluster.whoami()


def test_a_write_is_sent_once_though_its_token_was_renewed(in_a_pod: tuple[FakeApi, Path]) -> None:
    api, folder = in_a_pod
    job = api.world.apply(manifests.job())
    with contextlib.closing(from_pod(folder)) as cluster:
        cluster.whoami()
        api.users["renewed"] = api.users.pop(TOKEN)
        (folder / "token").write_text("renewed")
        ref = Ref("batch/v1", "Job", "ml", NAME, job["metadata"]["uid"])
        cluster.patch(ref, {"metadata": {"annotations": {"a": "b"}}}, None)
    assert [one.code for one in api.log if one.method == "PATCH"] == [401, 200]


def test_a_token_that_cannot_be_read_is_a_matter_of_credentials(in_a_pod: tuple[FakeApi, Path]) -> None:
    with contextlib.closing(from_pod(in_a_pod[1])) as cluster:
        (in_a_pod[1] / "token").unlink()
        with pytest.raises(Denied, match="credentials cannot be read"):
            cluster.whoami()


def test_a_server_that_nobody_vouches_for_is_not_spoken_to(
    in_a_pod: tuple[FakeApi, Path], make_certificate: Any
) -> None:
    api, folder = in_a_pod
    (folder / "ca.crt").write_bytes(make_certificate("somebody else").cert.read_bytes())
    with contextlib.closing(from_pod(folder)) as cluster, pytest.raises(Away, match="certificate verify failed"):
        cluster.whoami()
    assert api.log == []


def test_a_kubeconfig_is_taken_by_name_or_from_the_environment(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = api.write_kubeconfig(tmp_path / "config")
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for one in (connect(path), connect(path, context="fake"), connect()):
        with contextlib.closing(one):
            assert one.whoami()


BROKEN = {
    "empty": "",
    "not YAML": "{",
    "no clusters": "{}",
    "no user": json.dumps({"clusters": [{"name": "a", "cluster": {"server": "http://x"}}], "users": []})[:-1]
    + ', "contexts": [{"name": "a", "context": {"cluster": "a"}}], "current-context": "a"}',
    "unknown cluster": '{"clusters": [], "users": [], "contexts": [{"name": "a", "context": {"cluster": "b"}}], '
    '"current-context": "a"}',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_kubeconfig_that_is_no_good_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(UsageError, match=str(tmp_path / "config")) as told:
        connect(tmp_path / "config")
    assert len(str(told.value).splitlines()) == 1


def test_no_cluster_at_all_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    for path, context in ((tmp_path / "none", None), (None, None)):
        with pytest.raises(UsageError, match="none"):
            connect(path, context)
