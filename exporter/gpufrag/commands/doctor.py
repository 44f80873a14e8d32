"""`gpufrag doctor`: find what prevents alerts and restarts from working. It only reads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..wire.codec import dumps
from .arguments import folder_name, option

if TYPE_CHECKING:
    from ..doctor.checks import Outcome
    from ..sidecar.readings import NvmlReading
    from ..web.client import Client

MAX_MANIFESTS = 16 << 20
SIDECAR = "http://127.0.0.1:9836"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    host = parser.add_argument_group("this host")
    host.add_argument("--host", action="store_true", help="check this host (default if nothing else is chosen)")
    option(host, "--folder", "DIR", "folder that ranks and sidecar share (default: as for gpufrag run)", folder_name)
    option(host, "--sidecar", "URL", f"address of the sidecar (default: {SIDECAR})", default=SIDECAR)
    cluster = parser.add_argument_group("a Kubernetes cluster")
    cluster.add_argument("--kubernetes", action="store_true", help="check a cluster")
    option(cluster, "--namespace", "NAME", "namespace of the jobs (default: this pod's own)")
    option(cluster, "--release-namespace", "NAME", "namespace of the restarter (default: gpufrag)")
    text = "name of the restarter's Deployment (default: gpufrag-restarter)"
    option(cluster, "--restarter", "NAME", text)
    option(cluster, "--kubeconfig", "FILE", "kubeconfig file (default: $KUBECONFIG)", Path)
    option(cluster, "--context", "NAME", "context of the kubeconfig (default: its current context)")
    other = parser.add_argument_group("Prometheus and manifests")
    option(other, "--prometheus", "URL", "check a Prometheus, for example http://prometheus:9090")
    option(other, "--bearer-file", "FILE", "file with the bearer token for Prometheus", Path)
    option(other, "--manifests", "FILE", "check rendered manifests (output of kubectl kustomize); - for standard input")
    option(parser, "--ca-file", "FILE", "CA certificates for https addresses", Path)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Return 1 if a check failed or could not look."""
    from ..doctor.checks import failed
    from ..reports.terminal import bold

    _refuse_flags_without_effect(options)
    outcomes: list[Outcome] = []
    emphasis = bold(sys.stdout)
    for outcome in _outcomes(options):
        outcomes.append(outcome)
        if not options.json:
            print(outcome.line(emphasis), flush=True)
    if options.json:
        print(dumps([outcome.as_record() for outcome in outcomes], 2))
    return 1 if failed(outcomes) else 0


def _refuse_flags_without_effect(options: argparse.Namespace) -> None:
    for flag in ("namespace", "release_namespace", "restarter", "kubeconfig", "context"):
        if getattr(options, flag) is not None and not options.kubernetes:
            raise UsageError(f"--{flag.replace('_', '-')} requires --kubernetes")
    if options.bearer_file is not None and not options.prometheus:
        raise UsageError("--bearer-file requires --prometheus")


def _outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    sidecar = _client(options.sidecar, "--sidecar", options.ca_file)
    prometheus = options.prometheus and _client(
        options.prometheus, "--prometheus", options.ca_file, options.bearer_file
    )
    if options.host or not (options.kubernetes or options.prometheus or options.manifests):
        yield from _host(options, sidecar)
    if options.kubernetes:
        yield from _cluster(options)
    if prometheus:
        from ..doctor import prometheus as checks
        from ..doctor.checks import examine

        yield from examine("prometheus", checks.CHECKS, checks.Prometheus(prometheus))
    if options.manifests:
        yield from _manifests(options.manifests)


def _client(url: str, option: str, ca_file: Path | None, bearer_file: Path | None = None) -> Client:
    """Raises GpufragError if an address or file is unusable, so that no check reports it as the server's fault."""
    from ..web.client import Client, require_url

    require_url(url, option)
    client = Client(url.rstrip("/"), ca_file=ca_file, bearer_file=bearer_file)
    client.check()
    return client


def _host(options: argparse.Namespace, sidecar: Client) -> Iterator[Outcome]:
    import time

    from ..doctor import host, ranks
    from ..doctor.checks import examine
    from ..wire.folder import to_read

    found = ranks.Ranks(options.folder or to_read(), time.time())
    context = host.Host(found, read_nvml, sidecar)
    folder, *rest = host.CHECKS
    yield from examine("host", [folder], context)
    yield from examine("host", ranks.CHECKS, found)
    yield from examine("host", rest, context)


def _cluster(options: argparse.Namespace) -> Iterator[Outcome]:
    import time

    from ..doctor import cluster
    from ..doctor.checks import examine
    from ..restarter.kubernetes import client as kubernetes
    from .restarter import own_namespace

    connected = kubernetes.connect(options.kubeconfig, options.context)
    namespace = options.namespace or own_namespace()
    try:
        release = options.release_namespace or "gpufrag"
        restarter = options.restarter or "gpufrag-restarter"
        place = cluster.Place(connected, namespace, time.time(), release, restarter)
        yield from examine("cluster", cluster.CHECKS, place)
    finally:
        connected.close()


def _manifests(source: str) -> Iterator[Outcome]:
    from ..doctor import manifests
    from ..doctor.checks import examine
    from ..errors import BadInput, Unavailable

    try:
        if source == "-":
            text = sys.stdin.read(MAX_MANIFESTS + 1)
        else:
            with open(source, encoding="utf-8") as file:
                text = file.read(MAX_MANIFESTS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"cannot read {source}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from None
    if len(text) > MAX_MANIFESTS:
        raise BadInput(f"cannot read {source}: larger than {MAX_MANIFESTS >> 20} MiB")
    return examine("manifests", manifests.CHECKS, manifests.Manifests(text))


def read_nvml() -> NvmlReading:
    """Raises Unavailable, after a few seconds at most, if the driver does not answer."""
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
