"""Agents to kill: `python killed_agents.py FOLDER`; each line on stdin is a rank and forks a process with an agent.

Prints the pid of each. An agent publishes as fast as it can: whatever it is doing when it dies, it is most likely
writing. Every figure of its n-th sample is n.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fake_source import ScriptedSource
from gpufrag.agent.agent import Agent
from gpufrag.agent.schedule import Clocks
from gpufrag.agent.settings import AgentSettings
from gpufrag.agent.sources import DeviceReading


@dataclass
class NumberedSource(ScriptedSource):
    """The n-th reading returns n, after the n-th step."""

    number: int = 0

    def read(self) -> Sequence[DeviceReading]:
        self.number += 1
        self.step()
        readings = super().read()
        return [replace(r, totals=r.totals and replace(r.totals, peak_active=self.number)) for r in readings]


def publish_for_ever(folder: Path, rank: int) -> None:
    os.environ["RANK"] = str(rank)
    source = NumberedSource()
    settings = AgentSettings(folder=folder, interval=1e9, publish_every=0.0)
    Agent(source, settings, clocks=replace(Clocks(), wall=lambda: float(source.number))).start()
    signal.pause()


def main(folder: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the killed need no undertaker
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            publish_for_ever(folder, int(line))
        print(pid, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
