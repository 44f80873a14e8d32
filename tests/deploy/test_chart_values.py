"""Values that cannot be, or that would quietly take from the chart what it relies on: refused by the schema."""

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
    "networkPolicy.egressPorts={0}",
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
def test_it_is_refused(setting):
    assert "values don't meet" in refusal(helm("template", "x", CHART, "--set", setting))
