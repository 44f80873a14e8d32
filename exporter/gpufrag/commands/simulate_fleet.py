"""`gpufrag simulate-fleet`: as many jobs and ranks as one likes, for load tests and demonstrations."""

from __future__ import annotations

import argparse

from ..units import argument, parse_duration, whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    some, any_number = argument(whole(1, 100_000)), argument(whole(0))
    parser.add_argument("--jobs", type=some, default=4, help="how many jobs; default 4")
    parser.add_argument("--ranks", type=some, default=8, help="ranks of each job; default 8")
    parser.add_argument(
        "--faulty", type=any_number, default=1, help="jobs with a rank that fragments its memory; default 1"
    )
    parser.add_argument("--play", type=argument(parse_duration), default=300.0, help="how fast it does so; default 5m")
    parser.add_argument(
        "--restart", type=argument(parse_duration), default=1800.0, help="when that rank begins anew; default 30m"
    )
    parser.add_argument(
        "--port", type=argument(whole(0, 65535)), default=9836, help="on the loopback address; 0 takes any free one"
    )
    parser.add_argument("--no-detail", dest="detail", action="store_false", help="only what alerts and rules read")


def run(options: argparse.Namespace) -> int:
    from ..config.sidecar import WebSettings
    from ..demo.fleet_simulator import fleet, server
    from ..demo.fleet_simulator.film import film
    from ..errors import UsageError
    from ..web import runner
    from ..web.listen import Address

    if options.play <= 0 or options.restart <= 0:
        raise UsageError("--play and --restart are above 0")
    if options.faulty > options.jobs:
        raise UsageError(f"--faulty {options.faulty}: there are {options.jobs} jobs; raise --jobs, or lower it")
    jobs = fleet.jobs(options.jobs, options.ranks, options.faulty)
    films = {name: film(name) for name in (fleet.HEALTHY, fleet.FRAGMENTING)}
    period = fleet.Period(options.play, options.restart)
    service = runner.Service(
        server.app(jobs, films, period, detail=options.detail),
        started=lambda address: print(f"targets for http_sd_configs: http://{address}/targets", flush=True),
    )
    connections = 2 * options.jobs + 16  # Prometheus keeps one for each target
    runner.run(
        service,
        WebSettings(
            listen_address=str(Address("127.0.0.1", options.port)),
            max_requests=connections,
            max_connections=connections,
        ),
    )
    return 0
