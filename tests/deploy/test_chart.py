"""The chart with different values: it renders valid manifests and grants what is needed and no more."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpufrag.config import sidecar as sidecar_config
from gpufrag.restarter import settings
from gpufrag.restarter.kubernetes import permissions
from gpufrag.restarter.kubernetes.targets import TARGETS
from helpers import kept
from manifests import (
    CHART,
    KUBERNETES,
    NEWEST,
    OLDEST,
    Manifest,
    as_json,
    check,
    documents,
    flags,
    helm,
    is_core,
    node_modules,
    output,
    pods,
    refusal,
    restricted,
    template,
    tool,
)

pytestmark = pytest.mark.real

EVERY_TARGET = f"targets={{{','.join(map(str, TARGETS))}}}"
EVERYTHING = (
    EVERY_TARGET,
    "allowedNamespaces={ml,research}",
    "dryRun=false",
    "web.existingSecret=web",
    "checkpoint.existingSecret=gpufrag-checkpoint",
    "networkPolicy.sidecars.enabled=true",
    "networkPolicy.sidecars.otherPorts=false",
    "podMonitor.enabled=true",
    "podMonitor.labels.release=stack",
    "prometheusRule.enabled=true",
    "prometheusRule.labels.release=stack",
    "priorityClassName=high",
    "imagePullSecrets[0].name=pull",
    "podLabels.team=ml",
    "podAnnotations.team=ml",
    "config.prometheus.url=http://prometheus:9090",
    "nodeSidecar.enabled=true",
)
MATRIX = {
    "defaults": (),
    "one namespace": ("allowedNamespaces={ml}",),
    "everything": EVERYTHING,
    "node sidecar": ("enabled=false", "nodeSidecar.enabled=true", "nodeSidecar.runtimeClassName="),
    "no restarter": ("enabled=false", "podMonitor.enabled=true", "podMonitor.namespaces={ml}"),
    "nothing": ("enabled=false", "rules.configMap=false", "dashboards.enabled=false"),
    "no network policy": ("networkPolicy.enabled=false",),
}


def made(*settings: str, version: str = NEWEST) -> list[Manifest]:
    return documents(template(*settings, version=version))


def of_kind(kind: str, *settings: str) -> list[Manifest]:
    return [row for row in made(*settings) if row["kind"] == kind]


@pytest.mark.parametrize("name", MATRIX)
def test_helm_lint_finds_nothing(name):
    output(helm("lint", "--strict", "--quiet", CHART, *flags(MATRIX[name])))


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", MATRIX)
def test_manifests_fit_the_schemas(name, version):
    check([row for row in made(*MATRIX[name], version=version) if is_core(row)], version)


def test_names_that_look_like_numbers_stay_text():
    odd = ("allowedNamespaces={123,1e5}", "priorityClassName=7", "web.existingSecret=0x1", "auth.existingSecret=1")
    command = helm("template", "17", CHART, "--namespace", "42", "--kube-version", NEWEST)
    rows = documents(output([*command, *flags(odd, "--set-string")]))
    check(rows, NEWEST)
    assert {row["metadata"]["namespace"] for row in rows} == {"42", "123", "1e5"}


def test_injection_needs_kubernetes_1_36():
    message = refusal(helm("template", "x", CHART, "--kube-version", "1.35", "--set", "injection.enabled=true"))
    assert "needs Kubernetes 1.36" in message


def operator_faults(manifests: list[Manifest]) -> str:
    modules = node_modules("@kubernetes-models/prometheus-operator")
    script = CHART.parents[2] / "tests" / "deploy" / "operator_resources.mjs"
    return output([tool("node", "Debian: nodejs"), script, modules], as_json(manifests))


def test_operator_resources_fit_their_schemas():
    rows = [row for row in made(*EVERYTHING) if row["apiVersion"].startswith("monitoring.coreos.com/")]
    assert sorted(row["kind"] for row in rows) == ["PodMonitor", "PodMonitor", "PrometheusRule"]
    assert operator_faults(rows) == ""


def test_broken_operator_resource_is_found():
    (rule,) = of_kind("PrometheusRule", "prometheusRule.enabled=true")
    del rule["spec"]["groups"][0]["rules"][0]["expr"]
    assert "expr" in operator_faults([rule])


def test_custom_resources_are_off_by_default():
    assert [row["kind"] for row in made() if not is_core(row)] == []


def test_restarter_pod_is_restricted():
    assert [restricted(pod) for pod in pods(made(*EVERYTHING, "nodeSidecar.enabled=false"))] == [[]]


def rights(role: Manifest) -> dict[tuple[str, str], set[str]]:
    """Verbs by group and resource."""
    return {(rule["apiGroups"][0], rule["resources"][0]): set(rule["verbs"]) for rule in role["rules"]}


@pytest.mark.parametrize("targets", [[kind] for kind in TARGETS] + [list(TARGETS)], ids=lambda kinds: str(kinds[0]))
def test_role_allows_what_its_targets_need(targets):
    chosen = f"targets={{{','.join(map(str, targets))}}}"
    (role,) = [row for row in of_kind("Role", chosen, "allowedNamespaces={ml}") if row["metadata"]["namespace"] == "ml"]
    assert rights(role) == rights({"rules": permissions.role_rules(targets)})


def test_roles_are_per_namespace_only():
    rows = made("allowedNamespaces={ml,research}")
    found = [(row["metadata"]["namespace"], row["metadata"]["name"]) for row in rows if row["kind"] == "RoleBinding"]
    role = "gpufrag-restarter"
    assert sorted(found) == [("gpufrag", f"{role}-circuit"), ("ml", role), ("research", role)]
    assert not {row["kind"] for row in rows} & {"ClusterRole", "ClusterRoleBinding", "Secret"}


def restarter_config(tmp_path: Any, *chosen: str) -> settings.RestarterConfig:
    """As read by the restarter."""
    (found,) = [row for row in of_kind("ConfigMap", *chosen) if "restarter.yaml" in row.get("data", {})]
    path = tmp_path / "restarter.yaml"
    path.write_text(found["data"]["restarter.yaml"], encoding="utf-8")
    return settings.load(path)


def test_restarter_reads_default_config(tmp_path):
    config = restarter_config(tmp_path)
    assert (config.policy.dry_run, config.policy.namespaces) == (True, ())
    assert str(config.auth.bearer_file) == "/etc/gpufrag/auth/token"
    assert (config.web.listen_address, config.metrics_web.listen_address) == (":9837", ":9838")
    assert config.checkpoint.token_file is None


def test_restarter_reads_config_values(tmp_path):
    config = restarter_config(tmp_path, *EVERYTHING, "config.policy.cooldown=10m", "config.log.level=debug")
    assert (config.policy.dry_run, config.policy.namespaces) == (False, ("ml", "research"))
    assert (config.policy.cooldown, config.prometheus.url) == (600, "http://prometheus:9090")
    assert config.log == sidecar_config.LogSettings("debug")


def test_files_in_config_are_mounted():
    (pod,) = pods(made(*EVERYTHING, "nodeSidecar.enabled=false"))
    (container,) = pod["spec"]["containers"]
    mounted = {row["mountPath"] for row in container["volumeMounts"]}
    assert mounted >= {f"/etc/gpufrag/{name}" for name in ("auth", "checkpoint", "restarter", "web")}


def test_restarter_may_write_its_circuit_config_map(tmp_path):
    name = restarter_config(tmp_path).circuit.config_map
    assert name in [row["metadata"]["name"] for row in of_kind("ConfigMap")]
    (role,) = of_kind("Role")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get", "patch"]}
    ]


def test_own_rules_replace_shipped_rules(tmp_path):
    own = tmp_path / "rules.yaml"
    own.write_text("groups: [{name: mine, rules: []}]\n", encoding="utf-8")
    text = output(
        helm("template", "x", CHART, "--set", "prometheusRule.enabled=true", "--set-file", f"rules.content={own}")
    )
    (rule,) = [row for row in documents(text) if row["kind"] == "PrometheusRule"]
    assert rule["spec"] == {"groups": [{"name": "mine", "rules": []}]}


def test_dashboards_have_grafana_label():
    boards = [row for row in of_kind("ConfigMap") if "grafana_dashboard" in row["metadata"]["labels"]]
    assert sorted(key for row in boards for key in row["data"]) == sorted(
        path.name for path in (CHART / "files" / "dashboards").glob("*.json")
    )
    assert {row["metadata"]["labels"]["grafana_dashboard"] for row in boards} == {"1"}


def test_packed_chart_contains_linked_files(tmp_path):
    output(helm("package", CHART, "--destination", tmp_path))
    (archive,) = tmp_path.glob("*.tgz")
    assert template("prometheusRule.enabled=true", chart=archive) == template("prometheusRule.enabled=true")


PLAIN = "# Generated from deploy/helm/gpufrag by tests/deploy (GPUFRAG_UPDATE=1): change the chart, not this file.\n"


def unmanaged(text: str) -> str:
    """Without labels that only helm needs."""
    rows = documents(text)
    for row in rows:
        for label in ("app.kubernetes.io/managed-by", "helm.sh/chart"):
            row["metadata"]["labels"].pop(label, None)
    return "---\n".join(yaml.safe_dump(row, sort_keys=False, width=120) for row in rows)


NO_EXTRAS = ("rules.configMap=false", "dashboards.enabled=false")


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("restarter/restarter.yaml", ("allowedNamespaces={training}", *NO_EXTRAS)),
        ("monitoring/podmonitor.yaml", ("enabled=false", "podMonitor.enabled=true", *NO_EXTRAS)),
        ("shared-node/daemonset.yaml", ("enabled=false", "nodeSidecar.enabled=true", *NO_EXTRAS)),
    ],
)
def test_plain_manifests_are_generated_from_the_chart(path, values):
    kept(KUBERNETES / path, PLAIN + unmanaged(template(*values)))


@pytest.mark.parametrize("value", ["image", "injection.image", "nodeSidecar.image"])
def test_image_can_be_set_by_digest(value):
    digest = f"sha256:{'0' * 64}"
    values = (
        f"{value}.digest={digest}",
        f"{value}.repository=own",
        "injection.enabled=true",
        "nodeSidecar.enabled=true",
    )
    assert f"own@{digest}" in template(*values)
