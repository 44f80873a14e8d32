"""`gpufrag check-config`: is a config file, and the web config file that it names, what the sidecar can use?"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the YAML file of gpufrag serve --config")
    parser.add_argument("--web", action="store_true", help="FILE is a web config file (--web.config.file) instead")


def run(options: argparse.Namespace) -> int:
    from ..config import sidecar as config
    from ..web import bearer, files, listen

    if options.web:
        files.read(options.file)
    else:
        whole = config.load(options.file)
        settings = whole.web
        if whole.control.token_file:
            bearer.TokenFile(whole.control.token_file).check()
        listen.parse(settings.listen_address, f"{options.file}: web.listen_address")
        files.read(settings.config_file)
    print(f"{options.file}: good")
    return 0
