"""Runs in a separate process that loads the built library: calls on stdin, pickled answers on stdout."""

import pickle
import sys
import threading

from gpufrag.errors import GpufragError, Unavailable
from gpufrag.sidecar.nvml import Collector, Session


class Remote:
    def __init__(self) -> None:
        self.now = 1000.0  # of the session's monotonic clock; a test moves it
        self.session = Session(wall=lambda: 1.7e9, monotonic=lambda: self.now)
        self.collector: Collector | None = None

    def read(self) -> object:
        return self.session.read()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def collect(self, deadline: float) -> object:
        if self.collector is None:
            self.collector = Collector(deadline, self.session.read)
        return self.collector.collect()

    def threads(self) -> int:
        return threading.active_count()


def main() -> None:
    remote = Remote()
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 (from the test that started us)
        except EOFError:
            return
        try:
            answer = getattr(remote, name)(*arguments)
        except GpufragError as error:
            answer = Unavailable(str(error))
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


main()
