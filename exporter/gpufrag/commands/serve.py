"""`gpufrag serve`: the sidecar."""

from __future__ import annotations

import argparse
import gc
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..units import whole
from .arguments import option

if TYPE_CHECKING:
    from ..config.sidecar import ServeConfig
    from ..web.listen import Address
    from ..web.runner import Service


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from ..config import reference
    from ..config.sidecar import ServeConfig

    option(parser, "--config", "FILE", "YAML file with settings; flags take precedence", Path)
    reference.add_flags(parser, ServeConfig)
    parser.add_argument("--host", help="address to listen on, without the port (default: 127.0.0.1)")
    option(parser, "--port", "PORT", "port to listen on; 0 chooses a free one (default: 9836)", whole(0, 65535))
    option(parser, "--write-target", "DIR", "write a target file for Prometheus' file_sd_configs to DIR", Path)


def run(options: argparse.Namespace) -> int:
    raise_deferred = _defer_sighup()  # before the slow imports

    from .. import logs
    from ..sidecar import server
    from ..web import runner

    config = configured(options)
    logs.setup(config.log.level)
    sidecar = server.Sidecar(config, _folder, lambda: configured(options))
    gc.collect()
    gc.freeze()  # a collection during a scrape need not look at what is loaded by now
    with closing(sidecar), _announcing(sidecar.service(), options.write_target) as service:
        runner.run(_calling(service, raise_deferred), config.web)
    return 0


def _defer_sighup() -> Callable[[Address], None]:
    """Defer a SIGHUP, which would end the process, until the server handles it. Call the result then."""
    deferred: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, frame: deferred.append(number))
    return lambda address: signal.raise_signal(deferred[0]) if deferred else None


def _calling(service: Service, function: Callable[[Address], None]) -> Service:
    """Return the service with `function` called first when it listens."""

    def started(address: Address) -> None:
        function(address)
        service.started(address)

    return replace(service, started=started)


@contextmanager
def _announcing(service: Service, folder: Path | None) -> Iterator[Service]:
    """Yield the service; it writes a target file to the folder, if there is one, while it runs."""
    if folder is None:
        yield service
        return
    from ..sidecar import target_file

    with target_file.kept(folder) as announce:
        yield _calling(service, announce)


def configured(options: argparse.Namespace) -> ServeConfig:
    from ..config import reference
    from ..config import sidecar as config
    from ..web.listen import Address, parse

    settings = config.load(options.config, reference.flag_values(options, config.ServeConfig))
    given = getattr(options, "web.listen_address")
    base = parse(
        settings.web.listen_address, "--web.listen-address" if given else f"{options.config}: web.listen_address"
    )
    host = base.host if options.host is None else options.host.strip("[]")
    port = base.port if options.port is None else options.port
    return replace(settings, web=replace(settings.web, listen_address=str(parse(str(Address(host, port))))))


def _folder(config: ServeConfig, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder where the agents write. Raises Unavailable if it is not a folder or cannot be read.

    A folder that was named may be missing: a sidecar starts before its job. The default one is created.
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
