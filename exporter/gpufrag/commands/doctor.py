"""`gpufrag doctor`: what keeps alerts and restarts from working here, and what to mend. It only reads."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..units import argument
from .arguments import folder_name

if TYPE_CHECKING:
    from ..doctor.results import Outcome
    from ..sidecar.readings import NvmlReading


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", action="store_true", help="this host; the default where nothing else is named")
    parser.add_argument(
        "--folder", metavar="DIR", type=argument(folder_name), help="where ranks and sidecar meet ($GPUFRAG_DIR)"
    )
    parser.add_argument(
        "--sidecar", metavar="URL", default="http://127.0.0.1:9836", help="of this host (http://127.0.0.1:9836)"
    )
    parser.add_argument("--kubernetes", action="store_true", help="a cluster, as these credentials see it")
    parser.add_argument("--namespace", metavar="NAME", help="of the jobs; default this pod's own")
    parser.add_argument("--release-namespace", metavar="NAME", default="gpufrag", help="of the chart (gpufrag)")
    parser.add_argument("--restarter", metavar="NAME", default="gpufrag-restarter", help="its name (gpufrag-restarter)")
    parser.add_argument("--kubeconfig", metavar="FILE", type=Path, help="outside a pod; default $KUBECONFIG")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig; default its current one")
    parser.add_argument("--prometheus", metavar="URL", help="a Prometheus, as http://prometheus:9090")
    parser.add_argument("--bearer-file", metavar="FILE", type=Path, help="holds the token that Prometheus wants")
    parser.add_argument("--json", action="store_true", help="for programs: subject, check, result and text of each")


def run(options: argparse.Namespace) -> int:
    """1 where a check fails; a warning is none."""
    from ..doctor import report
    from ..reports.terminal import bold

    _require_good(options)
    outcomes: list[Outcome] = []
    emphasis = bold(sys.stdout)
    for outcome in _outcomes(options):
        outcomes.append(outcome)
        if not options.json:
            print(report.line(outcome, emphasis), flush=True)
    if options.json:
        print(json.dumps([report.as_record(outcome) for outcome in outcomes], indent=2))
    return 1 if report.failed(outcomes) else 0


def _require_good(options: argparse.Namespace) -> None:
    """Raises GpufragError for what is none: it would fail in each check, and be told as the server's fault."""
    from ..restarter.recheck import read_token
    from ..web.client import require_url

    require_url(options.sidecar, "--sidecar")
    if options.prometheus is not None:
        require_url(options.prometheus, "--prometheus")
    if options.bearer_file is not None:
        read_token(options.bearer_file, "--bearer-file")


def _outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    if options.host or not (options.kubernetes or options.prometheus):
        yield from _host(options)
    if options.kubernetes:
        yield from _cluster(options)
    if options.prometheus:
        yield from _prometheus(options)


def _host(options: argparse.Namespace) -> Iterator[Outcome]:
    import time

    from ..doctor import host
    from ..doctor.results import examine
    from ..wire.folder import to_read

    context = host.Host(lambda: options.folder or to_read(), time.time, read_nvml, options.sidecar.rstrip("/"))
    return examine("host", host.CHECKS, context)


def _cluster(options: argparse.Namespace) -> Iterator[Outcome]:
    from ..doctor import cluster
    from ..doctor.results import examine
    from ..restarter.kubernetes import client as kubernetes
    from .restarter import own_namespace

    connected = kubernetes.connect(options.kubeconfig, options.context)
    namespace = options.namespace or own_namespace()
    try:
        place = cluster.Place(connected, namespace, options.release_namespace, options.restarter)
        yield from examine("cluster", cluster.CHECKS, place)
    finally:
        connected.close()


def _prometheus(options: argparse.Namespace) -> Iterator[Outcome]:
    from ..doctor import prometheus
    from ..doctor.results import examine

    context = prometheus.Prometheus(options.prometheus.rstrip("/"), options.bearer_file)
    return examine("prometheus", prometheus.CHECKS, context)


def read_nvml() -> NvmlReading:
    """Raises Unavailable, after a few seconds at most, where the driver says nothing."""
    from ..errors import Unavailable
    from ..sidecar.nvml import Collector

    collector = Collector()
    try:
        answer = collector.collect()
    finally:
        collector.close()
    if answer.value is None:
        raise Unavailable(answer.result.reason or "no answer")
    return answer.value
