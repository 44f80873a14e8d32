"""`gpufrag mixin build`: recording rules, alerts and dashboards with one's own thresholds and labels."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    what = "write rules.yaml, prometheusrule.yaml and grafana/*.json"
    build = actions.add_parser(
        "build", help=what, description=what, epilog="example: gpufrag mixin build --out mixin --rules-only"
    )
    build.add_argument("--out", metavar="DIR", type=Path, required=True, help="the folder to write into")
    build.add_argument("--config", metavar="FILE", type=Path, help="a YAML file with the keys of --set")
    build.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="as in selector='cluster=\"a\"', thresholds.fragmentation_ratio=6, severities.critical=page, "
        "labels.team=ml, off=[]; wins over the file; may be repeated",
    )
    build.add_argument("--rules-only", action="store_true", help="no dashboards")


def run(options: argparse.Namespace) -> int:
    from ..mixin import config, outputs

    chosen = config.load(options.config, options.settings)
    files = outputs.rule_files(chosen) | ({} if options.rules_only else outputs.dashboard_files(chosen))
    outputs.write(files, options.out)
    print("\n".join(str(options.out / name) for name in files))
    return 0
