"""Values that the schema refuses: invalid ones, and ones that would override what the chart relies on."""

from __future__ import annotations

import pytest

from manifests import CHART, helm, refusal

pytestmark = pytest.mark.real

WRONG = [
    "dryrun=true",
    "targets={Pod}",
    "allowedNamespaces={ML}",
    "auth.existingSecret=",
    "auth.key=../token",
    "checkpoint.existingSecret=Token",
    "checkpoint.key=a/b",
    "injection.checkpointSecret=",
    "networkPolicy.apiServerPorts={0}",
    "networkPolicy.prometheusPort=0",
    "image.digest=latest",
    "podMonitor.interval=15",
]
OURS = [
    "config.policy.dry_run=false",
    "config.policy.namespaces={ml}",
    "config.web.listen_address=:80",
    "config.metrics_web.listen_address=:80",
    "config.auth.bearer_file=/token",
    "config.checkpoint.token_file=/token",
    "config.target=slurm",
]
LABELS = [
    r"podLabels.app\.kubernetes\.io/name=another",
    r"prometheusRule.labels.helm\.sh/chart=another",
    r"podMonitor.labels.app\.kubernetes\.io/instance=another",
]


@pytest.mark.parametrize("setting", WRONG + OURS + LABELS)
def test_value_is_refused(setting):
    assert "values don't meet" in refusal(helm("template", "x", CHART, "--set", setting))
