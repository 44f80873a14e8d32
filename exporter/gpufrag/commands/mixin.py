"""`gpufrag mixin build`: recording rules, alerts and dashboards with your own thresholds and labels."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import Unavailable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    what = "write rules.yaml, prometheusrule.yaml and grafana/*.json"
    build = actions.add_parser(
        "build", help=what, description=what, epilog="example: gpufrag mixin build --out mixin --rules-only"
    )
    build.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder to write to")
    build.add_argument("--config", metavar="FILE", type=Path, help="YAML file with the same keys as --set")
    build.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set one key; may be repeated, and takes precedence over the file. Examples: selector='cluster=\"a\"', "
        "thresholds.fragmentation_ratio=6, severities.critical=page, labels.team=ml, off=[]",
    )
    build.add_argument(
        "--rules-only", action="store_true", help="do not write dashboards (they need Python 3.11 and gpufrag[mixin])"
    )


def run(options: argparse.Namespace) -> int:
    from ..mixin import config, dashboards, rules

    if options.out.exists() and not options.out.is_dir():
        raise Unavailable(f"{options.out} is not a folder; choose another folder with --out")
    chosen = config.load(options.config, options.settings)
    files = rules.rule_files(chosen)
    if not options.rules_only:
        files |= {f"grafana/{name}": text for name, text in dashboards.files(chosen).items()}
    for name, text in files.items():
        path = options.out / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Unavailable(f"cannot write {path}: {error.strerror}; choose another folder with --out") from None
        print(path)
    return 0
