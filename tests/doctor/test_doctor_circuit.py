"""Whether the circuit is closed, and can be opened, in the place where it is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpufrag.doctor.cluster import CHECKS, Place
from gpufrag.doctor.results import Fail, Ok, Result, Warn
from gpufrag.restarter.kubernetes.client import KubernetesCluster
from gpufrag.restarter.kubernetes.permissions import CIRCUIT
from helpers import TESTS
from restarter.fake_api.rbac import User
from restarter.fake_api.server import TOKEN, FakeApi, fake_api

SHIPPED = TESTS.parent / "deploy" / "kubernetes" / "restarter" / "restarter.yaml"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as one:
        yield one


def remember(api: FakeApi, **annotations: str) -> None:
    meta = {"name": "gpufrag-restarter", "namespace": "gpufrag", "annotations": annotations}
    api.world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})


def look(api: FakeApi) -> Result:
    cluster = KubernetesCluster(api.config(), trust_env=False)
    (row,) = [row for row in CHECKS if row.name == "circuit"]
    try:
        return row.run(Place(cluster, "ml"))
    finally:
        cluster.close()


def shipped_rule() -> dict[str, Any]:
    roles = [one for one in yaml.safe_load_all(SHIPPED.read_text()) if one and one["kind"] == "Role"]
    (rule,) = [rule for role in roles for rule in role["rules"] if rule["resources"] == ["configmaps"]]
    return dict(rule)


def test_an_open_one_is_told_with_its_cause(api: FakeApi) -> None:
    remember(api, **{"gpufrag.dev/circuit-open": "3 restarts failed"})
    found = look(api)
    assert isinstance(found, Warn)
    assert "3 restarts failed" in found.text


def test_a_closed_one_is_good(api: FakeApi) -> None:
    remember(api)
    assert look(api) == Ok("closed")


def test_the_role_that_is_shipped_is_enough_and_no_more(api: FakeApi) -> None:
    remember(api)
    rule = shipped_rule()
    assert tuple(rule["verbs"]) == CIRCUIT.verbs
    api.users[TOKEN] = User("restarter", (rule,), "gpufrag")
    assert look(api) == Ok("closed")


@pytest.mark.parametrize("changes", [{"verbs": ["get"]}, {"resourceNames": ["gpufrag-restarter-config"]}])
def test_who_may_not_open_it_is_told_so(api: FakeApi, changes: dict[str, Any]) -> None:
    remember(api)
    reads = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
    api.users[TOKEN] = User("restarter", (reads, {**shipped_rule(), **changes}), "gpufrag")
    found = look(api)
    assert isinstance(found, Fail)
    assert "restarter may not patch ConfigMap gpufrag/gpufrag-restarter (to remember" in found.text
