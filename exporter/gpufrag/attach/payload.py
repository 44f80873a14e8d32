"""Runs inside the process that `gpufrag attach` was given, in its main thread, between two of its instructions.

It does what the shim does at start: it waits for the first use of a GPU. The result goes to the file REPORT. No name of
the program's changes, and no exception reaches it but those that its own signal handlers raise meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import Any

NAME = "gpufrag_attach"


def start_agent(library: str) -> str:
    """Return begun, waiting, already, disabled, importing or failed."""
    if os.environ.get("GPUFRAG_DISABLE") == "1":
        return "disabled"
    cuda: Any = sys.modules.get("torch.cuda")  # not torch itself, which may load at the first access to it
    if cuda is not None and getattr(getattr(cuda, "__spec__", None), "_initializing", False):
        return "importing"
    sys.path.append(library)  # for this import only, as in the shim
    try:
        from gpufrag import agent
    finally:
        sys.path.remove(library)
    if _is_running():
        return "already"
    agent.wait()
    if _is_running():
        return "begun"
    return "failed" if cuda is not None and cuda.is_initialized() else "waiting"


def _is_running() -> bool:
    lifecycle = sys.modules.get("gpufrag.agent.lifecycle")
    return lifecycle is not None and lifecycle.running()


def report(library: str) -> dict[str, Any]:
    """Return the `state`, and the `error` if it is failed. Raises what a signal handler of the program raises."""
    let_through = _load(os.path.join(library, "gpufrag", "wire", "interrupts.py"))["let_through"]
    try:
        return {"state": start_agent(library)}
    except BaseException as error:
        let_through(error)
        return {"state": "failed", "error": f"{type(error).__name__}: {error}"}


def _load(path: str) -> dict[str, Any]:
    """Return the names of one of our files. Not an import of gpufrag, which may be what fails."""
    with open(path, "rb") as file:
        code = file.read()
    names: dict[str, Any] = {"__name__": NAME}
    exec(compile(code, path, "exec"), names)
    return names


def run(file: str, target: str) -> None:
    """`file` is this one; the report appears at `target` in one step, in a private folder of this process's user."""
    try:
        result = report(os.path.dirname(os.path.dirname(os.path.dirname(file))))
    except BaseException as error:
        with suppress(OSError):
            _write({"state": "interrupted", "error": f"{type(error).__name__}: {error}"}, target)
        raise
    _write(result, target)


def _write(result: dict[str, Any], target: str) -> None:
    with open(f"{target}.tmp", "x", encoding="utf-8") as draft:
        json.dump(result, draft)
    os.replace(f"{target}.tmp", target)


if __name__ == NAME:
    run(__file__, globals()["REPORT"])
