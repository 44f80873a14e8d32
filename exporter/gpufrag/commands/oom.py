"""`gpufrag oom`: out-of-memory errors, explained. Each action is a module here with add_arguments and run."""

from __future__ import annotations

import argparse
import importlib
from typing import NamedTuple


class Action(NamedTuple):
    name: str
    help: str
    example: str

    @property
    def module(self) -> str:
        return f"oom_{self.name}"


ACTIONS = (
    Action("list", "the errors that agents have reported, the latest first", "gpufrag oom list --json"),
    Action("show", "all that was known when a request failed", "gpufrag oom show 4711-1"),
    Action(
        "explain",
        "a verdict on each error in the text of a log, of torch, TensorFlow or JAX",
        "gpufrag oom explain job.log",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for row in ACTIONS:
        module = importlib.import_module(f".{row.module}", __package__)
        child = actions.add_parser(row.name, help=row.help, description=row.help, epilog=f"example: {row.example}")
        module.add_arguments(child)
        child.set_defaults(act=module.run)


def run(options: argparse.Namespace) -> int:
    return int(options.act(options))
