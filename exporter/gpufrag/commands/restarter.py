"""`gpufrag restarter`: from an alert to a restarted job."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..restarter.settings import RestarterConfig

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="a YAML file; without it nothing is restarted")
    parser.add_argument("--check", action="store_true", help="say whether the config is good, and end")
    parser.add_argument("--kubeconfig", metavar="FILE", type=Path, help="outside a pod; default $KUBECONFIG")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig; default its current one")
    parser.add_argument("--log.level", dest="log_level", help="debug, info, warning or error; default info")


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
    """The file, with the flags on top."""
    from ..config.sidecar import LogSettings
    from ..restarter import settings

    config = settings.load(options.config) if options.config else settings.RestarterConfig()
    return config if options.log_level is None else replace(config, log=LogSettings(options.log_level))
