"""Run a program on the CUDA build of a torch release, on fake GPUs that only track allocations.

    python -m fake_cuda run --torch 2.15.0 -- python train.py
    python -m fake_cuda symbols --torch 2.15.0
    python -m fake_cuda clean

Allocations are real: torch's own allocator makes them, with its own errors, statistics and snapshots. Kernels do not
run, so values are arbitrary. Settings (sizes with KiB, MiB, GiB or TiB; several devices separated by commas):

    FAKE_CUDA_SIZE=80GiB        memory of the device          FAKE_CUDA_DEVICES=1    number of devices
    FAKE_CUDA_FREE=79GiB        free before the first use     FAKE_CUDA_MIG=1        they are MIG devices
    FAKE_CUDA_OTHER=0           held by another process       FAKE_CUDA_GROWTH=0     which takes this at every look
    FAKE_CUDA_REFUSE=RULES      calls that fail: cudaMalloc:3  cuMemCreate:2-5  cudaMemGetInfo:4-  cudaMalloc>1GiB
    FAKE_CUDA_PENDING=1         events complete only when the program synchronizes
    FAKE_CUDA_BACKED=1          host memory behind device addresses: copies keep their values
    FAKE_CUDA_CAPABILITY=80     compute capability            FAKE_CUDA_LOG=1        log what is refused
    FAKE_CUDA_ABORT=1           abort at a function that is not part of the stub
"""

import argparse
import os
import shutil
import sys

from . import build, environment, releases


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fake_cuda", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a program; the first time, download and unpack torch (about 1.5 GB)")
    symbols = commands.add_parser("symbols", help="print the functions that the stub does not have")
    commands.add_parser("clean", help="delete everything that was downloaded and built")
    for command in (run, symbols):
        command.add_argument("--torch", metavar="RELEASE", default=releases.NEWEST, help="default: %(default)s")
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM [ARGUMENT ...]")
    options = parser.parse_args()
    try:
        if options.command == "run":
            program = options.program[1:] if options.program[:1] == ["--"] else options.program
            if not program:
                parser.error("name the program to run, after --")
            os.execvpe(program[0], program, environment.environment(options.torch))
        if options.command == "symbols":
            print_missing(options.torch)
        else:
            shutil.rmtree(releases.cache_folder(), ignore_errors=True)
    except (releases.Unavailable, OSError) as error:
        print(f"fake_cuda: {error}", file=sys.stderr)
        return 1
    return 0


def print_missing(release: str) -> None:
    for library, functions in build.missing_functions(release).items():
        print(f"{library}: {len(functions)}")
        for function in sorted(functions):
            print(f"    {function}")


if __name__ == "__main__":
    sys.exit(main())
