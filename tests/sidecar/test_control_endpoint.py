"""The checkpoint API over HTTP: authorization, progress and single commands."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufrag.checkpoint.protocol import COMMANDS, Answers
from gpufrag.config.sidecar import ControlSettings
from gpufrag.errors import BadInput, Unavailable
from gpufrag.sidecar.control import MAX_BODY, PATHS
from helpers import wait_until
from live_ranks import PATIENCE, live_ranks, saves_at
from running_server import Running, running, sidecar_of

TOKEN = "0123456789abcdef0123"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ranks"


def serving(folder: Path, token_file: Path | None, **settings: bool) -> AbstractContextManager[Running]:
    return running(sidecar_of(folder, control=ControlSettings(token_file, **settings)).service())


@pytest.fixture
def served(folder: Path, token_file: Path) -> Iterator[Running]:
    with serving(folder, token_file) as one:
        yield one


def _send(one: Running, path: str = "", token: str | None = TOKEN, **arguments: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    method = arguments.pop("method", "POST")
    url = one.url(f"/v1/checkpoint{path}")
    with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
        return client.request(method, url, headers=headers, **arguments)


def _outcome(one: Running) -> dict[str, Any]:
    wait_until(lambda: _send(one, method="GET").json()["outcome"] != "running", PATIENCE)
    answer: dict[str, Any] = _send(one, method="GET").json()
    return answer


def _states(one: Running, path: str, **fields: Any) -> list[str]:
    answers = Answers.from_json(_send(one, path, json={"id": "one", **fields}).json())
    return [rank.state for rank in answers.ranks]


def test_without_a_token_the_paths_do_not_exist(folder: Path) -> None:
    with serving(folder, None) as one:
        assert _send(one, method="GET").status_code == 404
        assert _send(one).status_code == 404
        assert [_send(one, f"/{command}", json={"id": "one"}).status_code for command in COMMANDS] == [404] * 6
        assert _send(one, token=None).status_code == 404  # not 401: no token would help


@pytest.mark.parametrize("path", sorted(path for path in PATHS if "defragment" in path))
def test_defragmentation_requires_the_same_token(folder: Path, token_file: Path, path: str) -> None:
    def status(token_file: Path | None, token: str) -> int:
        with serving(folder, token_file) as one, httpx.Client(trust_env=False, timeout=PATIENCE) as client:
            headers = {"authorization": f"Bearer {token}"}
            return client.post(one.url(path), headers=headers, json={"id": "two"}).status_code

    assert [status(None, TOKEN), status(token_file, TOKEN[:-1]), status(token_file, TOKEN)] == [404, 401, 200]


@pytest.mark.parametrize("token", [None, "wrong-wrong-wrong-wrong", TOKEN[:-1], ""])
def test_wrong_token_changes_nothing(served: Running, folder: Path, token: str | None) -> None:
    with live_ranks(folder, [saves_at]) as ranks:
        assert _send(served, token=token).status_code == 401
        assert _send(served, token=token, method="GET").status_code == 401
        for command in COMMANDS:
            assert _send(served, f"/{command}", token=token, json={"id": "one"}).status_code == 401
        assert ranks[0].participant.state(ranks[0].identity).id is None


def test_checkpoint_without_a_free_thread_does_not_block_the_next(served: Running, monkeypatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "gpufrag-checkpoint":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    answer = _send(served)
    assert (answer.status_code, answer.json()["outcome"]) == (503, "failed")
    monkeypatch.undo()
    assert _send(served).status_code == 202


def test_token_opens_nothing_else_and_is_reread(served: Running, token_file: Path) -> None:
    token_file.write_text("another-token-another-token")
    assert _send(served, method="GET").status_code == 401
    assert _send(served, method="GET", token="another-token-another-token").status_code == 404
    with httpx.Client(trust_env=False) as client:
        assert client.post(served.url("/metrics")).status_code == 405


def test_unusable_token_file_is_an_error_at_start(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot read token file"):
        serving(folder, tmp_path / "missing")
    (tmp_path / "short").write_text("short")
    with pytest.raises(BadInput, match="at least 16 characters"):
        serving(folder, tmp_path / "short")


def test_optional_token_file_turns_the_api_off_if_missing(folder: Path, token_file: Path) -> None:
    with serving(folder, token_file, optional=True) as one:
        assert _send(one, method="GET").status_code == 404  # the API is on, but has had no checkpoint
        assert _send(one, method="GET", token=None).status_code == 401
    token_file.unlink()
    with serving(folder, token_file, optional=True) as one:
        assert _send(one).status_code == 404


def test_all_ranks_save_and_continue(served: Running, folder: Path) -> None:
    with live_ranks(folder, [saves_at] * 2) as ranks:
        begun = _send(served, json={"timeout": PATIENCE})
        assert begun.status_code == 202
        found = _outcome(served)
        step = found["step"]
        assert (found["outcome"], found["id"]) == ("saved", begun.json()["id"])
        assert [rank.saved for rank in ranks] == [[step]] * 2
        assert found["text"] == f"All 2 ranks saved at step {step} to /checkpoints/{step}."
        assert not any(rank.exited for rank in ranks)


def test_all_ranks_save_and_end_with_exit(served: Running, folder: Path) -> None:
    with live_ranks(folder, [saves_at] * 2) as ranks:
        _send(served, json={"timeout": PATIENCE, "exit": True})
        assert _outcome(served)["outcome"] == "saved"
        for rank in ranks:
            rank.thread.join(PATIENCE)
        assert all(rank.exited for rank in ranks)


def test_failures_are_reported_with_their_outcome(served: Running, folder: Path) -> None:
    with live_ranks(folder, [saves_at, None]):
        _send(served)
        assert _outcome(served)["text"].startswith("rank 1: no checkpoint callback")
    with live_ranks(folder, [None]):
        _send(served)
        assert _outcome(served)["outcome"] == "no-callback"


def test_second_checkpoint_is_a_conflict(served: Running, folder: Path) -> None:
    allowed = threading.Event()
    with live_ranks(folder, [lambda request: allowed.wait(PATIENCE) and "saved"]):
        first = _send(served)
        second = _send(served)
        assert (first.status_code, second.status_code) == (202, 409)
        assert second.json()["id"] == first.json()["id"]
        allowed.set()
        assert _outcome(served)["path"] == "saved"


def test_remote_coordinator_sends_single_commands(served: Running, folder: Path) -> None:
    with live_ranks(folder, [saves_at] * 2) as ranks:
        assert _states(served, "/prepare") == ["prepared"] * 2
        for rank in ranks:
            rank.pause = 0.05  # so that the chosen step is ahead when the ranks receive it
        step = max(rank.participant.state(rank.identity).step or 0 for rank in ranks) + 40
        assert _states(served, "/at", step=step, patience=PATIENCE, hold=PATIENCE, command="ping") == ["promised"] * 2
        _send(served, "/confirm", json={"id": "one"})
        wait_until(lambda: _states(served, "/status") == ["saved"] * 2, PATIENCE)
        assert [rank.saved for rank in ranks] == [[step]] * 2
        _send(served, "/release", json={"id": "one", "exit": False})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        *((body, 400) for body in (b"[]", b"{", b'{"timeout": -1}', b'{"timeout": 1e9}', b'{"exit": 1}', b"\xff")),
        (b"x" * (MAX_BODY + 1), 413),
    ],
)
def test_invalid_body_is_refused(served: Running, body: bytes, status: int) -> None:
    assert _send(served, content=body).status_code == status


def test_invalid_field_is_the_ranks_answer(served: Running, folder: Path) -> None:
    with live_ranks(folder, [saves_at]):
        heard = Answers.from_json(_send(served, "/prepare", json={"id": 5}).json())
    assert heard.ranks == ()
    assert "prepare: id is a int, not a string" in heard.silent[0]
