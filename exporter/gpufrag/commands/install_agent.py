"""gpufrag install-agent DIR: a copy of the agent in a folder that a job's Python processes can read."""

from __future__ import annotations

import argparse
import sys

from ..attach.agent_copy.install import install
from ..units import argument
from .arguments import folder_name
from .run import PACKAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Copy the agent into DIR and print the variable to set in the job. The copy consists of Python files that need "
        "only the standard library of Python 3.10 to 3.14. Run it again to upgrade."
    )
    parser.add_argument(
        "folder",
        metavar="DIR",
        type=argument(folder_name),
        help="folder to copy to, for example a volume of an init container",
    )
    parser.add_argument(
        "--python",
        metavar="PYTHON",
        help="also load the agent in every process of this interpreter, with a .pth file in its site-packages; for "
        "images with a sitecustomize of their own",
    )


def run(options: argparse.Namespace) -> int:
    done = install(PACKAGE, options.folder.absolute(), options.python)
    print(f"PYTHONPATH={done.shim}")
    if done.pth is not None:
        print(f"gpufrag: {done.pth} loads the agent; no variable is needed for this interpreter", file=sys.stderr)
    else:
        what = "installed" if done.changed else "is already installed"
        print(f"gpufrag: agent {what}; put this folder first on the job's PYTHONPATH,", file=sys.stderr)
        print(f"gpufrag: or start the job with {done.wrapper} CMD ...", file=sys.stderr)
    return 0
