"""`gpufrag attach PID`: confirmation first, then one line with the outcome."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpufrag.attach.target import Target
from gpufrag.cli import main
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
    ("answer", "code", "said"),
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
def test_outcome_is_one_line(
    answer: dict[str, str] | None, code: int, said: str, asked: list[str], monkeypatch, capsys
) -> None:
    _answers(monkeypatch, answer)
    assert main(["attach", "4711", "--yes", "--wait", "0"]) == code
    out, err = capsys.readouterr()
    assert len(asked) == 1
    assert (out + err).count("\n") == 1
    assert said in out + err


@pytest.mark.parametrize("reply", ["no", "", "n"])
def test_declined_attach_does_nothing(reply: str, asked: list[str], terminal, capsys) -> None:
    terminal.setattr("builtins.input", lambda prompt: reply)
    assert main(["attach", "4711"]) == 1
    err = capsys.readouterr().err
    assert "a debugger in a running\njob is a risk" in err
    assert err.endswith("nothing was done\n")
    assert asked == []


def test_confirmed_attach_injects(asked: list[str], terminal) -> None:
    terminal.setattr("builtins.input", lambda prompt: "yes")
    _answers(terminal, {"state": "waiting"})
    assert main(["attach", "4711"]) == 0
    assert len(asked) == 1


def test_attach_without_terminal_requires_yes(asked: list[str], monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert main(["attach", "4711"]) == 2
    assert "add --yes" in capsys.readouterr().err
    assert asked == []


def test_attach_without_stdin_requires_yes(asked: list[str], monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["attach", "4711"]) == 2
    assert "add --yes" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["soon"], [], ["1", "2"], ["7", "--wait", "soon"]])
def test_invalid_call_is_one_line(words: list[str], capsys) -> None:
    assert main(["attach", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_injected_code_names_the_payload(asked: list[str], terminal, tmp_path: Path) -> None:
    _answers(terminal, {"state": "waiting"})
    main(["attach", "4711", "--yes"])
    assert str(attach.PAYLOAD) in asked[0]
    subprocess.run([sys.executable, "-c", f"compile({asked[0]!r}, 'line', 'exec')"], check=True)


@pytest.mark.parametrize("wait", ["-1", "nan", "inf", "soon"])
def test_invalid_wait_is_refused(wait: str, asked: list[str], capsys) -> None:
    assert main(["attach", "4711", "--yes", f"--wait={wait}"]) == 2
    assert "--wait" in capsys.readouterr().err
    assert asked == []


def test_interrupt_says_what_happens_to_the_request(asked: list[str], monkeypatch, capsys) -> None:
    def interrupted(file: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(attach, "read_report", interrupted)
    assert main(["attach", "4711", "--yes"]) == 130
    assert "the request stays and is carried out" in capsys.readouterr().err
    assert len(asked) == 1
