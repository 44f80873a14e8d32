"""`gpufrag restarter`: from an alert to a restarted job."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..restarter.settings import RestarterConfig

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from ..config import reference
    from ..restarter.settings import FLAGS, RestarterConfig

    parser.add_argument("--config", metavar="FILE", type=Path, help="a YAML file; without it nothing is restarted")
    parser.add_argument("--check", action="store_true", help="say whether the config is good, and end")
    parser.add_argument("--kubeconfig", metavar="FILE", type=Path, help="outside a pod; default $KUBECONFIG")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig; default its current one")
    reference.add_flags(parser, RestarterConfig, FLAGS)


def run(options: argparse.Namespace) -> int:
    from .. import logs
    from ..restarter import backends as platforms
    from ..restarter import server, settings

    config = _configured(options)
    if options.check:
        server.check(config)
        platforms.check(config)
        idle = settings.idle_because(config)
        print(f"{options.config or 'the defaults'}: good{f', and restarts nothing: {idle}' if idle else ''}")
        return 0
    logs.setup(config.log.level)
    it = platforms.connect(config, options.kubeconfig, options.context)
    server.run(
        it.config,
        server.assemble(it.config, it.cluster, own_namespace(), it.checkpointer, targets=it.targets, locate=it.locate),
    )
    return 0


def own_namespace(path: Path = NAMESPACE_FILE) -> str:
    """Of the pod that this runs in; outside a pod, `default`."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return "default"


def _configured(options: argparse.Namespace) -> RestarterConfig:
    from ..config import reference
    from ..restarter import settings

    return settings.load(options.config, reference.flag_values(options, settings.RestarterConfig))
