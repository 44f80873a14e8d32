"""Publishes as agents do, to be killed: `python killed_agents.py FOLDER`; each line on stdin, a rank, forks one.

Prints the pid of each. A publisher has the real control socket, and replaces its real sample as fast as it can:
whatever it is doing when it dies, it is most likely writing. Every figure of its n-th sample is n.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from fake_agents import process_sample
from gpufrag.agent.control import Control
from gpufrag.agent.publisher import publish
from gpufrag.agent.trouble import Trouble
from gpufrag.folder import FileName
from gpufrag.sample import ProcessSample, encode


def numbered(sample: ProcessSample, number: int) -> ProcessSample:
    (device,) = sample.devices
    totals = replace(device.totals, peak_active=number, peak_reserved=number) if device.totals else None
    return replace(sample, steps=number, time=float(number), devices=(replace(device, totals=totals, snapshots=()),))


def publish_for_ever(folder: Path, rank: int) -> None:
    sample = process_sample(rank, time.time())
    sample = replace(sample, identity=replace(sample.identity, pid=os.getpid(), start=time.time()))
    name = FileName.of(sample.identity)
    control = Control(folder / name.socket, {}, Trouble())
    assert control.reachable
    for number in itertools.count(1):
        publish(folder / name.sample, encode(numbered(sample, number)))


def main(folder: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the killed need no undertaker
    for rank in range(4):
        process_sample(rank)  # measured once, for all that are forked
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            publish_for_ever(folder, int(line))
        print(pid, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
