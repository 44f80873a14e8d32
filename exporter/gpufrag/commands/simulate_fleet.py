"""`gpufrag simulate-fleet`: any number of jobs and ranks, for load tests and demonstrations."""

from __future__ import annotations

import argparse

from ..units import parse_duration, whole
from .arguments import option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    some = whole(1, 100_000)
    option(parser, "--jobs", "N", "number of jobs (default: 4)", some, default=4)
    option(parser, "--ranks", "N", "ranks per job (default: 8)", some, default=8)
    option(parser, "--faulty", "N", "number of jobs with one fragmenting rank (default: 1)", whole(0), default=1)
    text = "time until the faulty ranks are fragmented, such as 10m (default: 5m)"
    option(parser, "--play", "DURATION", text, parse_duration, default=300.0)
    text = "time between restarts of the faulty jobs, such as 1h (default: 30m)"
    option(parser, "--restart", "DURATION", text, parse_duration, default=1800.0)
    option(parser, "--host", "ADDRESS", "address to listen on (default: 127.0.0.1)", default="127.0.0.1")
    text = "port to listen on; 0 chooses a free one (default: 9836)"
    option(parser, "--port", "PORT", text, whole(0, 65535), default=9836)
    parser.add_argument(
        "--no-detail", dest="detail", action="store_false", help="leave out metrics that no bundled alert uses"
    )


def run(options: argparse.Namespace) -> int:
    from ..config.sidecar import WebSettings
    from ..demo.fleet_simulator import fleet, server
    from ..demo.fleet_simulator.film import film
    from ..errors import UsageError
    from ..web import runner
    from ..web.listen import Address

    if options.play <= 0 or options.restart <= 0:
        raise UsageError("--play and --restart must be above 0")
    if options.faulty > options.jobs:
        raise UsageError(f"--faulty {options.faulty} is more than --jobs {options.jobs}")
    jobs = fleet.jobs(options.jobs, options.ranks, options.faulty)
    films = {name: film(name) for name in (fleet.HEALTHY, fleet.FRAGMENTING)}
    period = fleet.Period(options.play, options.restart)
    service = runner.Service(
        server.app(jobs, films, period, detail=options.detail),
        started=lambda address: print(f"targets for http_sd_configs: http://{address}/targets", flush=True),
    )
    connections = 2 * options.jobs + 16  # Prometheus keeps one per target
    runner.run(
        service,
        WebSettings(
            listen_address=str(Address(options.host, options.port)),
            max_requests=connections,
            max_connections=connections,
        ),
    )
    return 0
