"""The adapter on a server that fails: how each failure is told, and that none lasts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from gpufrag.restarter.errors import Away, ClusterError, Denied, NotFound, TooMany
from gpufrag.restarter.kubernetes import client as kubernetes
from gpufrag.restarter.kubernetes.client import KubernetesCluster
from gpufrag.restarter.kubernetes.cluster import PHASE, GroupKind
from gpufrag.restarter.kubernetes.kinds import JOB, JOB_SET, Resource
from restarter.fake_api import manifests
from restarter.fake_api.faults import CUT, STORM, Fault
from restarter.fake_api.server import FakeApi, fake_api
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


@pytest.mark.parametrize("group", ["nobody.example.com", "batch"])
def test_a_kind_that_the_cluster_lacks_has_no_owners(
    cluster: KubernetesCluster, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = GroupKind(group, "Thing")
    monkeypatch.setitem(kubernetes.RESOURCES, kind, Resource("v1", "things"))  # type: ignore[arg-type]
    assert cluster.list_marked(kind, "ml") == ()


def test_marked_owners_are_found_by_who_may_not_ask_for_versions(api: FakeApi, cluster: KubernetesCluster) -> None:
    api.world.get("batch/v1", "Job", NAME)["metadata"]["annotations"][PHASE] = "x"
    api.faults.next(1, Fault(403))
    assert [one.name for one in cluster.list_marked(JOB, "ml")] == [NAME]


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
