"""What the chart has from elsewhere is no copy that went its own way: rules, dashboards, rights, relabelling."""

from __future__ import annotations

import json
import os
from typing import Any

import yaml

from gpufrag import __version__
from gpufrag.restarter import settings
from gpufrag.restarter.kubernetes import permissions
from gpufrag.restarter.kubernetes.targets import TARGETS
from helpers import kept
from manifests import CHART, DEPLOY, ROOT, read

FILES = CHART / "files"
MADE = "# Made by the tests of deploy/ (GPUFRAG_UPDATE=1)"
CAMEL = {"source_labels": "sourceLabels", "target_label": "targetLabel"}


def flow(rows: list[dict[str, Any]]) -> str:
    """A row a line."""
    return "".join(f"- {json.dumps(row)}\n" for row in rows)


def test_rules_and_dashboards_are_the_ones_of_the_mixin():
    assert os.path.samefile(FILES / "rules.yaml", DEPLOY / "prometheus" / "rules.yaml")
    assert os.path.samefile(FILES / "dashboards", ROOT / "grafana")


def test_rights_are_those_that_the_restarter_says_it_needs():
    rows = [
        {
            "group": one.kind.group,
            "resource": one.resource,
            "verbs": list(one.verbs),
            "targets": [str(target) for target in one.targets],
        }
        for one in permissions.PERMISSIONS
    ]
    kept(FILES / "permissions.yaml", f"{MADE} from gpufrag.restarter.kubernetes.permissions.\n{flow(rows)}")


def test_pods_are_relabelled_as_prometheus_without_the_operator_does():
    (scrape,) = read(DEPLOY / "prometheus" / "kubernetes.yml")["scrape_configs"]
    by_port, *rest = scrape["relabel_configs"]
    assert by_port["regex"] == "gpufrag", "the operator selects the port by itself"
    rows = [{CAMEL.get(key, key): value for key, value in row.items()} for row in rest]
    kept(FILES / "relabelings.yaml", f"{MADE} from deploy/prometheus/kubernetes.yml.\n{flow(rows)}")


def test_versions_are_those_of_the_package():
    chart = read(CHART / "Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_schema_knows_every_value_and_every_target():
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert missing(read(CHART / "values.yaml"), schema) == []
    assert sorted(schema["properties"]["targets"]["items"]["enum"]) == sorted(map(str, TARGETS))


def missing(values: dict[str, Any], schema: dict[str, Any], where: str = "") -> list[str]:
    """Values that a closed schema does not name, and names that have no value."""
    if schema.get("additionalProperties") is not False:
        return []
    named = set(schema["properties"]) - {"global"}
    inner = [
        fault
        for key in named & values.keys()
        if isinstance(values[key], dict)
        for fault in missing(values[key], schema["properties"][key], f"{where}/{key}")
    ]
    return [f"{where}/{key}" for key in named ^ values.keys()] + inner


def test_ports_are_those_of_the_restarter():
    text = (CHART / "templates" / "deployment.yaml").read_text(encoding="utf-8")
    for name, port in (("alerts", settings.PORT), ("metrics", settings.METRICS_PORT)):
        assert f"{{name: {name}, containerPort: {port}}}" in text


def test_a_comment_of_the_values_names_every_target():
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    assert [str(kind) for kind in TARGETS if str(kind) not in text] == []
    assert yaml.safe_load(text)["dryRun"] is True
