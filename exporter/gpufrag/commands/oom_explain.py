"""`gpufrag oom explain`: why a job ran out of memory, from the text of its log alone."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

from ..model.verdict import judge
from ..oom_log import Oom, log_chunks, read_log
from ..reports import oom_explain as report
from ..reports import terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a job's log, packed or not; - for standard input")
    parser.add_argument("--json", action="store_true", help="a list with one object for each error")


def run(options: argparse.Namespace) -> int:
    """Prints each error as soon as it is read: a log may be longer than memory."""
    explained = (_explain(oom) for oom in read_log(log_chunks(options.file)))
    if options.json:
        _print_list(explained)
    else:
        _print_text(explained)
    return 0


def _explain(oom: Oom) -> report.Explained:
    verdict = judge(oom.facts)
    return report.Explained(oom, verdict._replace(missing=(*oom.missing, *verdict.missing)))


def _print_list(explained: Iterator[report.Explained]) -> None:
    """Where reading fails in the middle, the list is still closed; where nothing was found by then, there is none."""
    before = "["
    try:
        for found in explained:
            print(before + json.dumps(report.as_record(found)), end="")
            before = ",\n "
    except BaseException:
        if before != "[":
            print("]")
        raise
    print("[]" if before == "[" else "]")


def _print_text(explained: Iterator[report.Explained]) -> None:
    bold, number = terminal.bold(sys.stdout), 0
    for number, found in enumerate(explained, start=1):
        print(("\n" if number > 1 else "") + report.as_text(found, bold))
    if number == 0:
        print("no out-of-memory error of torch, TensorFlow or JAX in this log")
