"""The permissions are enough for each kind, and none is more than it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpufrag.restarter.errors import Denied
from gpufrag.restarter.kubernetes import kinds
from gpufrag.restarter.kubernetes.cluster import PHASE, Event
from gpufrag.restarter.kubernetes.owners import resolve
from gpufrag.restarter.kubernetes.permissions import PERMISSIONS, lacking, needed, role_rules
from gpufrag.restarter.kubernetes.targets import TARGETS
from restarter.fake_api import manifests
from restarter.fake_api.rbac import ADMIN, User
from restarter.fake_api.server import TOKEN
from restarter.restarting import Scene, scene

Rules = list[dict[str, Any]]
FORBIDDEN = {"pods/exec", "secrets", "configmaps", "*"}


def allow(it: Scene, rules: Any) -> None:
    it.api.users[TOKEN] = User("restarter", tuple(rules), manifests.NAMESPACE)


def everything(it: Scene) -> None:
    """All that the restarter does to a job of this kind."""
    resolve(it.cluster, manifests.NAMESPACE, it.resolved.pod.name)
    assert it.target.pods(it.cluster, it.resolved.owner)  # each is asked for a checkpoint
    it.restart()
    it.cluster.create_event(Event(it.resolved.owner.ref, "Restarted", "", at_s=0.0))
    assert [one.annotations[PHASE] for one in it.cluster.list_marked(it.target.kind, manifests.NAMESPACE)]


def one_verb_less(rules: Rules) -> Iterator[Rules]:
    for one in rules:
        for left in one["verbs"]:
            less = {**one, "verbs": [verb for verb in one["verbs"] if verb != left]}
            yield [less if rule is one else rule for rule in rules]


@pytest.mark.parametrize("make", manifests.ALL, ids=lambda make: make.__name__)
def test_what_is_listed_for_a_kind_is_enough_and_nothing_less_is(make: Any) -> None:
    with scene(make()) as it:
        rules = role_rules([it.target.kind])
        allow(it, rules)
        everything(it)
        for fewer in one_verb_less(rules):
            allow(it, ADMIN)
            it.again(make())
            allow(it, fewer)
            with pytest.raises(Denied, match="403"):
                everything(it)


def test_nobody_is_allowed_what_a_restart_never_needs() -> None:
    rules = role_rules(TARGETS)
    assert not FORBIDDEN & {resource for rule in rules for resource in rule["resources"]}
    assert not {"delete", "deletecollection", "update", "watch", "*"} & {
        verb for rule in rules for verb in rule["verbs"]
    }


def test_a_rule_names_each_resource_once() -> None:
    named = [(rule["apiGroups"][0], rule["resources"][0]) for rule in role_rules(TARGETS)]
    assert len(named) == len(set(named))


def test_only_the_kinds_that_are_wanted_are_asked_for() -> None:
    assert {one.kind for one in needed([kinds.JOB])} == {kinds.POD, kinds.EVENT, kinds.JOB}
    assert set(needed(TARGETS)) == set(PERMISSIONS)


def test_every_target_can_be_patched_and_listed() -> None:
    for kind in TARGETS:
        assert ("get", "list", "patch") in [one.verbs for one in needed([kind]) if one.kind == kind]


def test_what_is_lacking_is_told_verb_by_verb() -> None:
    with scene(manifests.workflow()) as it:
        assert lacking(it.cluster, [it.target.kind], "ml") == ()
        allow(it, [rule for rule in role_rules([it.target.kind]) if rule["resources"] != ["pods/eviction"]])
        assert [(verb, one.resource) for verb, one in lacking(it.cluster, [it.target.kind], "ml")] == [
            ("create", "pods/eviction")
        ]
        assert len(lacking(it.cluster, [it.target.kind], "elsewhere")) == 7
