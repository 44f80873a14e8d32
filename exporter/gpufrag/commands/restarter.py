"""`gpufrag restarter`: restarts jobs whose alerts ask for it."""

from __future__ import annotations

import argparse
from pathlib import Path

from .arguments import option

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from ..config import reference
    from ..restarter.settings import FLAGS, RestarterConfig

    option(parser, "--config", "FILE", "config file; it must set auth.bearer_file or web.config_file", Path)
    parser.add_argument("--check", action="store_true", help="check the config and exit")
    option(parser, "--kubeconfig", "FILE", "kubeconfig file to use outside a pod (default: $KUBECONFIG)", Path)
    option(parser, "--context", "NAME", "context of the kubeconfig (default: its current context)")
    reference.add_flags(parser, RestarterConfig, FLAGS)


def run(options: argparse.Namespace) -> int:
    from .. import logs
    from ..config import reference
    from ..restarter import server, settings

    config = settings.load(options.config, reference.flag_values(options, settings.RestarterConfig))
    if options.check:
        server.check(config)
        idle = settings.idle_because(config)
        print(f"{options.config or 'the defaults'}: valid{f'; restarts no job: {idle}' if idle else ''}")
        return 0
    logs.setup(config.log.level)
    platform = server.connect(config, options.kubeconfig, options.context, own_namespace())
    server.run(config, server.assemble(config, platform))
    return 0


def own_namespace(path: Path = NAMESPACE_FILE) -> str:
    """Return the namespace of this pod; outside a pod, `default`."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return "default"
