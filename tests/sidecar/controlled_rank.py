"""A rank whose control socket is in the test's own process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fake_agents import FakeAgent, process_sample
from gpufrag.agent.identity import identify
from gpufrag.errors import UsageError
from gpufrag.wire.control_server import ControlServer
from gpufrag.wire.error_counter import ErrorCounter
from staged_programs import growing_cache, run


class Rank:
    """Answers the commands of the page's buttons; `orders` are what it received."""

    def __init__(self, folder: Path) -> None:
        self.agent = FakeAgent(folder, replace(process_sample(0), identity=identify()))
        self.orders: list[dict[str, Any]] = []
        self.agent.publish()

    def record(self, request: Any) -> dict[str, Any]:
        self.orders.append(dict(request))
        if request["steps"] == 9:
            raise UsageError("a recording is underway")
        (self.agent.folder / self.agent.name.trace).write_bytes(pickle.dumps(run(growing_cache), 4))
        return {"file": self.agent.name.trace}

    def sample_now(self, request: Any) -> dict[str, Any]:
        self.orders.append(dict(request))
        return {}


@contextmanager
def controlled(folder: Path) -> Iterator[Rank]:
    one = Rank(folder)
    commands = {"record": one.record, "sample-now": one.sample_now}
    with closing(ControlServer(one.agent.socket, commands, ErrorCounter())):
        yield one
