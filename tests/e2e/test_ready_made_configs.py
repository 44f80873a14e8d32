"""The configs in deploy/, checked by their own programs."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import monitoring
from gpufrag.mixin.config import Config
from gpufrag.mixin.rules import groups
from helpers import TESTS
from monitoring import eventually, executable

pytestmark = pytest.mark.real

DEPLOY = TESTS.parent / "deploy"
PROMETHEUS = sorted((DEPLOY / "prometheus").glob("*.yml"))
ALERTMANAGER = DEPLOY / "alertmanager" / "alertmanager.yml"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def without_kubernetes(config: dict[str, Any]) -> dict[str, Any]:
    """Replace Kubernetes discovery by an empty list of targets: Debian's Prometheus does not support it."""
    config = copy.deepcopy(config)
    for section in (*config["scrape_configs"], *config.get("alerting", {}).get("alertmanagers", [])):
        if section.pop("kubernetes_sd_configs", None):
            section["static_configs"] = []
    return config


@pytest.mark.parametrize("path", PROMETHEUS, ids=lambda path: path.name)
def test_promtool_accepts_config(path, tmp_path):
    config = without_kubernetes(read(path))
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    (tmp_path / "rules.yaml").write_text((DEPLOY / "prometheus" / "rules.yaml").read_text(encoding="utf-8"))
    command = [executable("promtool", "prometheus"), "check", "config", tmp_path / "prometheus.yml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kubernetes_config_discovers_pods():
    config = read(DEPLOY / "prometheus" / "kubernetes.yml")
    assert [row["kubernetes_sd_configs"] for row in config["scrape_configs"]] == [[{"role": "pod"}]]


POD = {
    "__meta_kubernetes_pod_container_port_name": "gpufrag",
    "__meta_kubernetes_pod_phase": "Running",
    "__meta_kubernetes_namespace": "ml",
    "__meta_kubernetes_pod_node_name": "gpu-1",
}
LABEL = "__meta_kubernetes_pod_label_"
PODS = {
    # pod: (additional discovery labels, its job_name; None if it is not a target)
    "bare": ({}, "bare"),
    "web-6c5-x": ({"__meta_kubernetes_pod_controller_name": "web-6c5", f"{LABEL}app_kubernetes_io_name": "web"}, "web"),
    "llm-0-abc": ({f"{LABEL}batch_kubernetes_io_job_name": "llm"}, "llm"),
    "set-workers-0-0-x": (
        {f"{LABEL}batch_kubernetes_io_job_name": "set-w-0", f"{LABEL}jobset_sigs_k8s_io_jobset_name": "set"}, "set"
    ),
    "torch-worker-0": ({f"{LABEL}training_kubeflow_org_job_name": "torch"}, "torch"),
    "done": ({"__meta_kubernetes_pod_phase": "Succeeded"}, None),
    "other": ({"__meta_kubernetes_pod_container_port_name": "http"}, None),
}  # fmt: skip


def test_kubernetes_targets_have_job_names(tmp_path):
    """The real relabelling, on the labels that discovery sets."""
    config = without_kubernetes(read(DEPLOY / "prometheus" / "kubernetes.yml"))
    (scrape,) = config["scrape_configs"]
    scrape["static_configs"] = [
        {"targets": [f"{name}:9836"], "labels": {**POD, "__meta_kubernetes_pod_name": name, **labels}}
        for name, (labels, _) in PODS.items()
    ]
    with monitoring.prometheus(tmp_path, {"scrape_configs": [scrape]}) as prometheus:
        targets = eventually(lambda: prometheus.get("targets")["activeTargets"], "targets are known")
    found = {target["labels"]["pod"]: target["labels"]["job_name"] for target in targets}
    assert found == {name: job for name, (_, job) in PODS.items() if job}
    assert {(target["labels"]["namespace"], target["labels"]["node"]) for target in targets} == {("ml", "gpu-1")}


def test_example_targets_are_valid():
    for entry in json.loads((DEPLOY / "prometheus" / "targets" / "example.json").read_text()):
        assert entry.keys() == {"targets", "labels"}
        assert "job_name" in entry["labels"]


def test_large_config_keeps_what_rules_read():
    config = read(DEPLOY / "prometheus" / "large.yml")
    drop = "|".join(row["regex"] for row in config["scrape_configs"][0]["metric_relabel_configs"])
    expressions = " ".join(rule["expr"] for group in groups(Config(off=())) for rule in group["rules"])
    assert [name for name in re.findall(r"\bgpufrag_\w+", expressions) if re.fullmatch(drop, name)] == []


def amtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [executable("amtool", "prometheus-alertmanager"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_amtool_accepts_routing():
    done = amtool("check-config", ALERTMANAGER)
    assert done.returncode == 0, done.stdout + done.stderr


ROUTES = {
    "GpuMemoryFragmented": "restarter,people",
    "GpuMemoryNextRequestWillFail": "on-call",
    "GpufragRestartRefused": "on-call",
    "GpuMemoryTight": "quiet",
    "GpuMemoryForeignProcess": "quiet",
    "GpufragRankMissing": "people",
}


@pytest.mark.parametrize("alert", ROUTES)
def test_alert_is_routed_to_receivers(alert):
    """With the labels of the rule."""
    rule = next(rule for group in groups(Config()) for rule in group["rules"] if rule.get("alert") == alert)
    labels = [f"{name}={value}" for name, value in {"alertname": alert, **rule["labels"]}.items()]
    done = amtool(
        "config", "routes", "test", f"--config.file={ALERTMANAGER}", f"--verify.receivers={ROUTES[alert]}", *labels
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_webhook_call_is_about_one_job():
    routes = [route for route in read(ALERTMANAGER)["route"]["routes"] if route["receiver"] == "restarter"]
    assert [route["group_by"] for route in routes] == [["alertname", "cluster", "namespace", "job_name"]]
    (receiver,) = [row for row in read(ALERTMANAGER)["receivers"] if row["name"] == "restarter"]
    assert [hook["send_resolved"] for hook in receiver["webhook_configs"]] == [False]


def test_inhibition_is_within_one_job():
    """Also if only the scrape name distinguishes jobs."""
    rules = read(ALERTMANAGER)["inhibit_rules"]
    assert [set(rule["equal"]) for rule in rules] == [set(Config().job_labels)] * len(rules)


def test_inhibited_alerts_exist():
    named = re.findall(r'alertname = "(\w+)"', ALERTMANAGER.read_text(encoding="utf-8"))
    assert set(named) - {rule.get("alert") for group in groups(Config()) for rule in group["rules"]} == set()
