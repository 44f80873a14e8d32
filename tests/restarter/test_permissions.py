"""The permissions are sufficient for each kind, and none is superfluous."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpufrag.restarter.backend import Denied
from gpufrag.restarter.decisions import Decision
from gpufrag.restarter.kubernetes import objects as kinds
from gpufrag.restarter.kubernetes.permissions import PERMISSIONS, needed, role_rules
from gpufrag.restarter.kubernetes.targets import TARGETS
from restarter.fake_api import manifests
from restarter.fake_api.rbac import ADMIN, User
from restarter.fake_api.server import TOKEN
from restarter.scene import Scene, pod_alert, scene

Rules = list[dict[str, Any]]
FORBIDDEN = {"pods/exec", "secrets", "configmaps", "*"}


def allow(it: Scene, rules: Any) -> None:
    it.api.users[TOKEN] = User("restarter", tuple(rules), manifests.NAMESPACE)


def do_everything(it: Scene) -> None:
    """Do all that the restarter does to a job of this kind."""
    it.backend.find(pod_alert(it.pod.name))
    assert it.backend.pods(it.job)
    it.restart()
    it.backend.notify(it.job, Decision(0.0, "restarted", "restarted", ""))
    assert it.client.list_marked(it.target.kind, manifests.NAMESPACE)


def without_each_verb(rules: Rules) -> Iterator[Rules]:
    for one in rules:
        for left in one["verbs"]:
            less = {**one, "verbs": [verb for verb in one["verbs"] if verb != left]}
            yield [less if rule is one else rule for rule in rules]


@pytest.mark.parametrize("make", manifests.ALL, ids=lambda make: make.__name__)
def test_permissions_of_a_kind_are_sufficient_and_minimal(make: Any) -> None:
    with scene(make()) as it:
        rules = role_rules([it.target.kind])
        allow(it, rules)
        do_everything(it)
        for fewer in without_each_verb(rules):
            allow(it, ADMIN)
            it.again(make())
            allow(it, fewer)
            with pytest.raises(Denied, match="403"):
                do_everything(it)


def test_no_dangerous_permission_is_needed() -> None:
    rules = role_rules(TARGETS)
    assert not FORBIDDEN & {resource for rule in rules for resource in rule["resources"]}
    verbs = {verb for rule in rules for verb in rule["verbs"]}
    assert not {"delete", "deletecollection", "update", "watch", "*"} & verbs


def test_each_resource_has_one_rule() -> None:
    named = [(rule["apiGroups"][0], rule["resources"][0]) for rule in role_rules(TARGETS)]
    assert len(named) == len(set(named))


def test_only_the_wanted_kinds_are_included() -> None:
    assert {one.kind for one in needed([kinds.JOB])} == {kinds.POD, kinds.EVENT, kinds.JOB}
    assert set(needed(TARGETS)) == set(PERMISSIONS)
