"""The permissions are sufficient for each kind, and none is superfluous."""

from __future__ import annotations

import pytest

from gpufrag.restarter.backend import Denied
from gpufrag.restarter.decisions import Decision
from gpufrag.restarter.kubernetes import objects as kinds
from gpufrag.restarter.kubernetes.permissions import PERMISSIONS, needed, role_rules
from gpufrag.restarter.kubernetes.targets import TARGETS
from restarter.fake_api import manifests
from restarter.fake_api.server import ADMIN
from restarter.scene import Scene, scene
from restarter.worker_rig import alert


def do_everything(it: Scene) -> None:
    """Do all that the restarter does to a job of this kind."""
    it.backend.find(alert(it.pod.name))
    assert it.backend.pods(it.job)
    it.restart()
    it.backend.notify(it.job, Decision(0.0, "restarted", "restarted", ""))
    assert it.client.list_marked(it.target.kind, manifests.NAMESPACE)


@pytest.mark.parametrize("make", manifests.ALL, ids=lambda make: make.__name__)
def test_permissions_of_a_kind_are_sufficient_and_minimal(make):
    with scene(make()) as it:
        rules = role_rules([it.target.kind])
        it.allow(rules)
        do_everything(it)
        for place, verb in [(place, verb) for place, rule in enumerate(rules) for verb in rule["verbs"]]:
            it.allow(ADMIN)
            it.start(make())
            fewer = {**rules[place], "verbs": [other for other in rules[place]["verbs"] if other != verb]}
            it.allow([*rules[:place], fewer, *rules[place + 1 :]])
            with pytest.raises(Denied, match="403"):
                do_everything(it)


def test_no_dangerous_permission_is_needed():
    rules = role_rules(TARGETS)
    allowed = {word for rule in rules for word in (*rule["resources"], *rule["verbs"])}
    assert not allowed & {"pods/exec", "secrets", "configmaps", "delete", "deletecollection", "update", "watch", "*"}
    assert len(rules) == len({(rule["apiGroups"][0], rule["resources"][0]) for rule in rules})


def test_only_the_wanted_kinds_are_included():
    assert {one.kind for one in needed([kinds.JOB])} == {kinds.POD, kinds.EVENT, kinds.JOB}
    assert set(needed(TARGETS)) == set(PERMISSIONS)
