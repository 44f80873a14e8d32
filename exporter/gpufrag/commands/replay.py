"""`gpufrag replay`: a recorded trace, run again on the simulated allocator."""

from __future__ import annotations

import argparse
import sys

from ..errors import BadInput
from ..model.settings import read_conf
from ..model.trace.events import Event
from ..model.trace.verification import difference
from ..model.trace.whatif import begin, shape
from ..reports import replay as report
from ..reports import terminal
from ..snapshot_file.recording import read_recording, read_run_of
from ..units import whole
from ..wire.codec import dumps
from .arguments import memory_limit, option, release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="snapshot with history (torch.cuda.memory._record_memory_history), or recorded trace in JSON",
    )
    text = "PYTORCH_CUDA_ALLOC_CONF to replay with (default: the recorded one; '' for torch's defaults)"
    option(parser, "--settings", "CONF", text, _conf)
    option(parser, "--limit", "SIZE", "memory limit to replay with (default: the limit while recording)", memory_limit)
    option(
        parser, "--recorded-limit", "SIZE", "memory limit while recording (default: the one in the file)", memory_limit
    )
    option(parser, "--device", "D", "device to replay, if the snapshot has several", whole(0))
    option(parser, "--torch", "RELEASE", "torch release, if the file does not name it", release)
    parser.add_argument("--json", action="store_true", help="print JSON: all figures, and the final heap as a snapshot")


def run(options: argparse.Namespace) -> int:
    recording = read_recording(options.file, options.device, options.torch)
    recorded_limit = recording.limit if options.recorded_limit is None else options.recorded_limit
    try:
        recorded = read_run_of(recording, recorded_limit)
    except BadInput as error:
        raise BadInput(f"{recording.name}: {error}") from None
    limit = recorded.recorded_limit if options.limit is None else options.limit
    settings = (
        recorded.end.settings if options.settings is None else read_conf(options.settings, recorded.end.settings.torch)
    )
    seen: list[Event] = []
    replay = begin(recorded, settings, limit, observe=seen.append)
    replay.run()
    as_recorded = settings == recorded.end.settings and limit == recorded.recorded_limit
    result = report.Replayed(
        name=recording.name,
        conf=recording.conf if options.settings is None else options.settings,
        replay=replay,
        same_end=shape(replay.allocator.heap()) == shape(recording.end),
        run=recorded,
        difference=difference(recording.events, seen, replay, recorded) if as_recorded else None,
    )
    print(dumps(report.as_record(result)) if options.json else report.as_text(result, terminal.bold(sys.stdout)))
    return 0


def _conf(text: str) -> str:
    read_conf(text)
    return text
