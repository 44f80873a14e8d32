"""A namespace in a real cluster, and service accounts with few permissions."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User

from restarter.contract.backend import Backend

GROUP = "rbac.authorization.k8s.io"


@contextlib.contextmanager
def namespace(config: SingleConfig) -> Iterator[Backend]:
    """Yield a backend in a new namespace, which is deleted at the end."""
    name = f"gpufrag-contract-{secrets.token_hex(3)}"
    one = Backend(config, name, lambda backend, rules: _limited(backend, config, rules), pause_s=0.5)
    reply = one.ask("POST", "api/v1/namespaces", {"metadata": {"name": name}})
    assert reply.code == 201, reply.body
    try:
        yield one
    finally:
        one.ask("DELETE", f"api/v1/namespaces/{name}")
        one.close()


def _limited(backend: Backend, config: SingleConfig, rules: list[dict[str, Any]]) -> SingleConfig:
    """Create a service account with these rules, and a token for ten minutes."""
    name = f"limited-{secrets.token_hex(3)}"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": backend.namespace}
    role = {"apiGroup": GROUP, "kind": "Role", "name": name}
    backend.create("v1 serviceaccounts", {"metadata": {"name": name}})
    backend.create(f"{GROUP}/v1 roles", {"metadata": {"name": name}, "rules": rules})
    binding = {"metadata": {"name": name}, "subjects": [subject], "roleRef": role}
    backend.create(f"{GROUP}/v1 rolebindings", binding)
    asked = {"spec": {"expirationSeconds": 600}}
    token = backend.create(f"v1 serviceaccounts/{name}/token", asked)["status"]["token"]
    found = KubeConfig.from_one(cluster=config.cluster, user=User(token=token), fname=config.fname).get()
    assert found is not None
    return found
