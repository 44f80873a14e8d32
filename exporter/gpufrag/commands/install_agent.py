"""gpufrag install-agent DIR: the agent alone, in a folder that a job's Python processes can read."""

from __future__ import annotations

import argparse
import sys

from ..attach.agent_copy.install import install
from ..units import argument
from .arguments import folder_name
from .run import PACKAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", type=argument(folder_name), help="such as a volume that an init container fills"
    )
    parser.description = (
        "Copy the agent (Python files that need nothing but the standard library, for Python 3.10 to 3.14) into DIR, "
        "and print the variable to set in the job. A second time it changes nothing, or brings the newer version."
    )


def run(options: argparse.Namespace) -> int:
    done = install(PACKAGE, options.folder.absolute())
    print(f"PYTHONPATH={done.shim}")
    what = "installed" if done.changed else "was there already"
    print(f"gpufrag: the agent {what}; set this in the job, before what its image has there,", file=sys.stderr)
    print(f"gpufrag: or start the job with {done.wrapper} CMD ...", file=sys.stderr)
    return 0
