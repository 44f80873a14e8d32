"""Which connections the chart's NetworkPolicies allow between the pods of the chart and the component."""

from __future__ import annotations

from typing import Any

import pytest

from gpufrag.config.sidecar import DEFAULT_PORT
from gpufrag.restarter import settings
from manifests import KUBERNETES, Manifest, documents, read, template

pytestmark = pytest.mark.real

OPEN = (
    "allowedNamespaces={ml,research}",
    "checkpoint.existingSecret=gpufrag-checkpoint",
    "networkPolicy.sidecars.enabled=true",
    "networkPolicy.sidecars.otherPorts=false",
    "podMonitor.enabled=true",
)
ALERTMANAGER = ("monitoring", {"app.kubernetes.io/name": "alertmanager"})
PROMETHEUS = ("monitoring", {"app.kubernetes.io/name": "prometheus"})
DNS = ("kube-system", {"k8s-app": "kube-dns"})
Pod = tuple[str, dict[str, str]]


def job(namespace: str) -> Pod:
    return namespace, {"job-name": "llm"}


def chosen(selector: Manifest, labels: dict[str, str]) -> bool:
    """Supports matchLabels and In, which is all that the chart uses."""
    assert not selector.keys() - {"matchLabels", "matchExpressions"}
    rows = selector.get("matchExpressions", [])
    assert {row["operator"] for row in rows} <= {"In"}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(row["key"]) in row["values"] for row in rows
    )


def allowed(rules: list[Manifest], side: str, home: str, other: Pod, port: int) -> bool:
    namespace, labels = other

    def is_peer(peer: Manifest) -> bool:
        if "ipBlock" in peer:
            return False
        own = {"matchLabels": {"kubernetes.io/metadata.name": home}}
        there = peer.get("namespaceSelector", own)
        return chosen(there, {"kubernetes.io/metadata.name": namespace}) and chosen(peer.get("podSelector", {}), labels)

    def allows(rule: Manifest) -> bool:
        peers = rule.get(side, [])  # no list and an empty list both mean everyone
        tcp = [row for row in rule["ports"] if row["protocol"] == "TCP"]
        listed = any(row["port"] <= port <= row.get("endPort", row["port"]) for row in tcp)
        return listed and (not peers or any(map(is_peer, peers)))

    return any(map(allows, rules))


class Network:
    def __init__(self, *values: str) -> None:
        self.rows = documents(template(*values))
        (self.deployment,) = [row for row in self.rows if row["kind"] == "Deployment"]
        self.restarter: Pod = ("gpufrag", self.deployment["spec"]["template"]["metadata"]["labels"])

    def passes(self, source: Pod, target: Pod, port: int) -> bool:
        return self._side("egress", "to", source, target, port) and self._side("ingress", "from", target, source, port)

    def _side(self, direction: str, side: str, home: Pod, other: Pod, port: int) -> bool:
        rules: list[list[Manifest]] = [
            row["spec"].get(direction, [])
            for row in self.rows
            if row["kind"] == "NetworkPolicy" and row["metadata"]["namespace"] == home[0]
            if chosen(row["spec"]["podSelector"], home[1]) and direction.capitalize() in row["spec"]["policyTypes"]
        ]
        return not rules or any(allowed(one, side, home[0], other, port) for one in rules)


@pytest.fixture(scope="module")
def network() -> Network:
    return Network(*OPEN)


def test_only_alertmanager_can_send_alerts(network):
    assert network.passes(ALERTMANAGER, network.restarter, settings.PORT)
    assert not network.passes(PROMETHEUS, network.restarter, settings.PORT)
    assert not network.passes(job("ml"), network.restarter, settings.PORT)


def test_prometheus_can_scrape_restarter_and_sidecars(network):
    assert network.passes(PROMETHEUS, network.restarter, settings.METRICS_PORT)
    assert network.passes(PROMETHEUS, job("ml"), DEFAULT_PORT)
    assert not network.passes(job("ml"), network.restarter, settings.METRICS_PORT)


@pytest.mark.parametrize("namespace", ["ml", "research"])
def test_restarter_reaches_only_the_sidecar_port_of_a_job(network, namespace):
    assert network.passes(network.restarter, job(namespace), DEFAULT_PORT)
    assert not network.passes(network.restarter, job(namespace), 29500)
    assert not network.passes(job("other"), job(namespace), DEFAULT_PORT)


def test_restarter_reaches_no_sidecar_without_token_or_permission(network):
    without_token = Network("allowedNamespaces={ml}")
    assert not without_token.passes(without_token.restarter, job("ml"), DEFAULT_PORT)
    assert not network.passes(network.restarter, job("other"), DEFAULT_PORT)


def test_restarter_reaches_dns_and_prometheus_but_no_other_pod(network):
    assert network.passes(network.restarter, DNS, 53)
    assert network.passes(network.restarter, PROMETHEUS, 9090)
    assert not network.passes(network.restarter, job("ml"), 53)
    assert not network.passes(network.restarter, job("ml"), 9090)


def test_api_server_addresses_restrict_egress():
    address = {"ipBlock": {"cidr": "10.0.0.1/32"}}
    network = Network("networkPolicy.apiServer[0].ipBlock.cidr=10.0.0.1/32")
    (policy,) = [row["spec"] for row in network.rows if row["kind"] == "NetworkPolicy"]
    assert all(rule.get("to") for rule in policy["egress"])
    assert [rule["to"] for rule in policy["egress"] if rule["ports"][0]["port"] == 443] == [[address]]
    assert not network.passes(network.restarter, job("ml"), 443)


def test_sidecar_port_follows_config():
    network = Network(*OPEN, "config.checkpoint.port=9000")
    assert network.passes(network.restarter, job("ml"), 9000)
    assert not network.passes(network.restarter, job("ml"), DEFAULT_PORT)


@pytest.mark.parametrize("open_ports", [True, False])
def test_policy_of_sidecars_opens_other_ports_on_request(open_ports):
    network = Network(*OPEN[:-2], f"networkPolicy.sidecars.otherPorts={str(open_ports).lower()}")
    for port in (DEFAULT_PORT - 1, DEFAULT_PORT + 1, 29500):
        assert network.passes(job("ml"), job("ml"), port) is open_ports
    assert not network.passes(job("ml"), job("ml"), DEFAULT_PORT)
    assert network.passes(network.restarter, job("ml"), DEFAULT_PORT)


def test_empty_list_of_peers_allows_no_client():
    network = Network("networkPolicy.alertmanager=null", "networkPolicy.prometheus=null")
    assert not network.passes(ALERTMANAGER, network.restarter, settings.PORT)
    assert not network.passes(PROMETHEUS, network.restarter, settings.METRICS_PORT)


def ports(containers: list[Manifest]) -> dict[str, int]:
    return {row["name"]: row["containerPort"] for one in containers for row in one.get("ports", [])}


def test_monitors_and_service_name_existing_ports(network):
    pod: Any = read(KUBERNETES / "sidecar" / "pod.yaml")["spec"]
    assert ports(pod["initContainers"]) == {"gpufrag": DEFAULT_PORT}
    own = ports(network.deployment["spec"]["template"]["spec"]["containers"])
    (service,) = [row["spec"] for row in network.rows if row["kind"] == "Service"]
    assert own[service["ports"][0]["targetPort"]] == settings.PORT
    monitors = [row["spec"] for row in network.rows if row["kind"] == "PodMonitor"]
    assert [one["podMetricsEndpoints"][0]["port"] for one in monitors] == ["gpufrag", "metrics"]
    assert own["metrics"] == settings.METRICS_PORT
    assert [chosen(one["selector"], network.restarter[1]) for one in monitors] == [True, True]
