"""How the restarter finds its cluster: in a pod over HTTPS, by a kubeconfig, and with a token that is renewed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightkube.config.kubeconfig import KubeConfig

from gpufrag.errors import Unavailable, UsageError
from gpufrag.restarter.errors import Away, Denied
from gpufrag.restarter.kubernetes.client import KubernetesCluster, connect
from gpufrag.restarter.kubernetes.cluster import Ref
from restarter.fake_api import manifests
from restarter.fake_api.server import TOKEN, FakeApi, fake_api


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as one:
        yield one


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
        ref = Ref("batch/v1", "Job", "ml", "train", job["metadata"]["uid"])
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


def test_without_the_client_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightkube.core.generic_client", None)
    spec = importlib.util.find_spec("gpufrag.restarter.kubernetes.client")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(Unavailable, match=r"needs lightkube, .*pip install 'gpufrag\[restarter\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
