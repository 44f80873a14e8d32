"""The API servers under test: the fake one, and a real one if GPUFRAG_TEST_KUBECONFIG names it.

A real cluster needs a node that can pull $GPUFRAG_TEST_IMAGE (default busybox). The tests create a namespace and
delete it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightkube.config.kubeconfig import KubeConfig, SingleConfig

from restarter.contract import real_cluster
from restarter.contract.backend import Backend
from restarter.fake_api.rbac import User
from restarter.fake_api.server import FakeApi, fake_api

REAL = os.environ.get("GPUFRAG_TEST_KUBECONFIG")


@pytest.fixture(scope="module", params=["fake", *(["real"] if REAL else [])])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param == "fake":
        with fake_api() as api:
            one = Backend(api.config(), "ml", lambda _, rules: _limited_in_fake(api, rules), pause_s=0.0)
            yield one
            one.close()
    else:
        config = KubeConfig.from_file(Path(str(REAL))).get()
        assert config is not None
        with real_cluster.namespace(config) as one:
            yield one


@pytest.fixture
def name() -> str:
    """The name of an object that no other test uses."""
    return f"try-{secrets.token_hex(4)}"


def _limited_in_fake(api: FakeApi, rules: list[dict[str, Any]]) -> SingleConfig:
    token = secrets.token_hex(8)
    api.users[token] = User("system:serviceaccount:ml:limited", tuple(rules), "ml")
    return api.config(token)
