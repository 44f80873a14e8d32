"""Signals that `gpufrag serve` receives before it serves."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufrag.commands import serve as command
from gpufrag.web.listen import Address
from serving import Serving

SLOW_START = """\
import os, signal, sys
from gpufrag.commands import serve
real = serve.configured
def configured(options):
    serve.configured = real
    found = real(options)
    os.kill(os.getpid(), signal.SIGHUP)  # during the start
    return found
serve.configured = configured
from gpufrag.cli import main
sys.exit(main())
"""


def test_sighup_during_the_start_reloads_later(tmp_path: Path) -> None:
    with contextlib.closing(Serving("--folder", str(tmp_path), "--port", "0", script=SLOW_START)) as one:
        one.wait_for('msg="config reloaded"')
        assert one.get("/-/healthy") == (200, "ok\n")
        assert one.end() == 0


def test_start_without_sighup_does_not_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    before = signal.getsignal(signal.SIGHUP)
    try:
        again: Callable[[Address], None] = command._defer_sighup()
        again(Address("127.0.0.1", 1))
        assert raised == []
        os.kill(os.getpid(), signal.SIGHUP)
        again(Address("127.0.0.1", 1))
        assert raised == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)
