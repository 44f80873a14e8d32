"""`gpufrag serve`: the sidecar."""

from __future__ import annotations

import argparse
import gc
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..units import argument, whole
from .arguments import folder_name

if TYPE_CHECKING:
    from ..config.sidecar import ServeConfig
    from ..web.listen import Address
    from ..web.runner import Service


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="a YAML file; a flag wins over it")
    parser.add_argument(
        "--folder", metavar="DIR", type=argument(folder_name), help="where agents leave their samples ($GPUFRAG_DIR)"
    )
    parser.add_argument("--host", help="the address to listen on; default 127.0.0.1")
    parser.add_argument(
        "--port", type=argument(whole(0, 65535)), help="the port to listen on; default 9836, 0 takes any free one"
    )
    parser.add_argument("--web.listen-address", dest="listen_address", metavar="HOST:PORT", help="both in one")
    parser.add_argument(
        "--web.config.file", dest="web_config", metavar="FILE", type=Path, help="TLS and basic auth, as other exporters"
    )
    parser.add_argument(
        "--nvml", action=argparse.BooleanOptionalAction, default=None, help="ask the driver too; default yes"
    )
    parser.add_argument(
        "--detail", action=argparse.BooleanOptionalAction, default=None, help="what no alert reads too; default yes"
    )
    parser.add_argument(
        "--write-target", metavar="DIR", type=Path, help="keep a file for Prometheus' file_sd_configs there"
    )
    parser.add_argument(
        "--control.token-file", dest="token_file", metavar="FILE", type=Path, help="its token may have ranks save"
    )
    parser.add_argument(
        "--control.optional", dest="token_optional", action="store_true", help="start without that file too"
    )
    parser.add_argument("--log.level", dest="log_level", help="debug, info, warning or error; default info")


def run(options: argparse.Namespace) -> int:
    hang_up_again = _hold_hangups()  # before what takes time to load

    from .. import logs
    from ..sidecar import server
    from ..web import runner

    config = configured(options)
    logs.setup(config.log.level)
    sidecar = server.Sidecar(config, _folder, lambda: configured(options))
    gc.collect()
    gc.freeze()  # what is loaded by now stays: no collection during a scrape need look at it
    with _announced(sidecar.service(), options.write_target) as service:
        runner.run(_telling(service, hang_up_again), config.web)
    return 0


def _hold_hangups() -> Callable[[Address], None]:
    """Keep a SIGHUP, which would end the process, until the server can take it: then the result is to be called."""
    held: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, frame: held.append(number))
    return lambda address: signal.raise_signal(held[0]) if held else None


def _telling(service: Service, also: Callable[[Address], None]) -> Service:
    """The service, which tells `also` where it listens, before it tells anybody else."""

    def started(address: Address) -> None:
        also(address)
        service.started(address)

    return replace(service, started=started)


@contextmanager
def _announced(service: Service, folder: Path | None) -> Iterator[Service]:
    """The service, which tells where it listens in a file as well if there is a folder for it."""
    if folder is None:
        yield service
        return
    from ..sidecar import target_file

    with target_file.kept(folder) as announce:
        yield _telling(service, announce)


def configured(options: argparse.Namespace) -> ServeConfig:
    """The file, with the flags on top."""
    from ..config import sidecar as config

    settings = config.load(options.config) if options.config else config.ServeConfig()
    folder, web, nvml, log = settings.folder, settings.web, settings.nvml, settings.log
    metrics, control = settings.metrics, settings.control
    return config.ServeConfig(
        folder=folder if options.folder is None else replace(folder, path=options.folder),
        web=replace(
            web,
            listen_address=_address(options, web.listen_address),
            config_file=web.config_file if options.web_config is None else options.web_config,
        ),
        nvml=nvml if options.nvml is None else replace(nvml, enabled=options.nvml),
        control=replace(
            control,
            token_file=control.token_file if options.token_file is None else options.token_file,
            optional=control.optional or options.token_optional,
        ),
        metrics=metrics if options.detail is None else replace(metrics, detail=options.detail),
        log=log if options.log_level is None else replace(log, level=options.log_level),
    )


def _address(options: argparse.Namespace, configured: str) -> str:
    from ..web.listen import Address, parse

    given = options.listen_address
    base = parse(given, "--web.listen-address") if given else parse(configured, f"{options.config}: web.listen_address")
    host = base.host if options.host is None else options.host.strip("[]")
    port = base.port if options.port is None else options.port
    return str(parse(str(Address(host, port))))


def _folder(config: ServeConfig, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the agents write. Raises Unavailable for a place that can never be that folder.

    One that was named and is missing is waited for: a sidecar starts before its job. The default one is made, so
    that there is something to wait in.
    """
    from ..errors import Unavailable
    from ..wire import folder

    named = config.folder.path
    path = named or folder.to_read(environment)
    if named is None and not environment.get(folder.VARIABLE) and not path.exists():
        path.mkdir(mode=0o700, exist_ok=True)
    if path.exists() and not path.is_dir():
        raise Unavailable(f"{path}: not a folder; name one with --folder or ${folder.VARIABLE}")
    if path.exists() and not os.access(path, os.R_OK | os.X_OK):
        raise Unavailable(f"{path}: not readable for uid {os.geteuid()}; share a user or a group with the job")
    return path
