"""`gpufrag attach PID`: confirmation first, then one line with the outcome."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpufrag.attach.target import Target
from gpufrag.commands import attach


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the code for the process, and answer from `answers`."""
    found: list[str] = []
    target = Target(os.getpid(), os.geteuid(), os.getegid(), (3, 11), {})
    monkeypatch.setattr(attach, "examine", lambda pid, caller: target)
    monkeypatch.setattr(attach, "injector", lambda target: lambda code, file: found.append(code))
    return found


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    return monkeypatch


def _answers(monkeypatch: pytest.MonkeyPatch, answer: Mapping[str, Any] | None) -> None:
    monkeypatch.setattr(attach, "read_report", lambda file: answer)


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        ({"state": "waiting"}, 0, "its agent starts when it does"),
        ({"state": "already"}, 0, "already has an agent"),
        ({"state": "disabled"}, 1, "GPUFRAG_DISABLE=1"),
        ({"state": "importing"}, 1, "try again in a few seconds"),
        ({"state": "failed", "error": "OSError: no space"}, 1, "continues without it (OSError: no space)"),
        ({"state": "begun"}, 0, "has not published yet"),
        ({"state": "something newer"}, 1, "did not reach a safe point"),
        (None, 1, "did not reach a safe point within 0 s"),
    ],
)
def test_outcome_is_one_line(cli, asked: list[str], monkeypatch, answer: Any, code: int, text: str) -> None:
    _answers(monkeypatch, answer)
    found, out, err = cli.run("attach", "4711", "--yes", "--wait", "0")
    assert (found, len(asked), (out + err).count("\n")) == (code, 1, 1)
    assert text in out + err


@pytest.mark.parametrize("reply", ["no", "", "n"])
def test_declined_attach_does_nothing(cli, asked: list[str], terminal, reply: str) -> None:
    terminal.setattr("builtins.input", lambda prompt: reply)
    code, _, err = cli.run("attach", "4711")
    assert (code, asked) == (1, [])
    assert "a debugger in a running\njob is a risk" in err
    assert err.endswith("nothing was done\n")


def test_confirmed_attach_injects_the_payload(cli, asked: list[str], terminal) -> None:
    terminal.setattr("builtins.input", lambda prompt: "yes")
    _answers(terminal, {"state": "waiting"})
    assert cli.run("attach", "4711")[0] == 0
    (code,) = asked
    assert str(attach.PAYLOAD) in code
    subprocess.run([sys.executable, "-c", f"compile({code!r}, 'line', 'exec')"], check=True)


@pytest.mark.parametrize("stdin", [None, io.StringIO("yes\n")], ids=["closed", "not a terminal"])
def test_attach_without_terminal_requires_yes(cli, asked: list[str], monkeypatch, stdin: Any) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    code, error = cli.refusal("attach", "4711")
    assert (code, "add --yes" in error, asked) == (2, True, [])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["soon"], "argument PID"),
        ([], "required: PID"),
        (["1", "2"], "unrecognized arguments: 2"),
        *((["4711", "--yes", f"--wait={wait}"], "--wait") for wait in ("-1", "nan", "inf", "soon")),
    ],
)
def test_invalid_call_is_one_line(cli, asked: list[str], words: list[str], text: str) -> None:
    code, error = cli.refusal("attach", *words)
    assert (code, text in error, asked) == (2, True, []), error


def test_interrupt_leaves_the_request(cli, asked: list[str], monkeypatch) -> None:
    def interrupted(file: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(attach, "read_report", interrupted)
    code, _, err = cli.run("attach", "4711", "--yes")
    assert (code, "the request stays and is carried out" in err, len(asked)) == (130, True, 1)
