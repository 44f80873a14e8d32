"""`gpufrag check-config`: validate a sidecar config file and the web config file that it names."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="YAML file of gpufrag serve --config")
    parser.add_argument("--web", action="store_true", help="FILE is a web config file (--web.config.file)")


def run(options: argparse.Namespace) -> int:
    from ..config import sidecar
    from ..errors import GpufragError, UsageError
    from ..web import auth, listen
    from ..web.config import read_files

    if options.web:
        read_files(options.file)
    else:
        try:
            config = sidecar.load(options.file)
        except UsageError as error:
            try:
                read_files(options.file)
            except GpufragError:
                raise error from None
            raise UsageError(*error.args, f"{options.file} is a web config file: check it with --web") from None
        if config.control.token_file:
            auth.TokenFile(config.control.token_file).check()
        listen.parse(config.web.listen_address, f"{options.file}: web.listen_address")
        read_files(config.web.config_file)
    print(f"{options.file}: valid")
    return 0
