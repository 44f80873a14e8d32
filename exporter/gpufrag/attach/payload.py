"""Runs inside the process that `gpufrag attach` was given, in its main thread, between two of its instructions.

It does what the shim would have done at the start: asks for an agent as soon as a device is in use. What came of it
goes to the file REPORT; nothing of it reaches the program. Its names are its own, the program's are not touched.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

NAME = "gpufrag_attach"


def ask_for_agent(library: str) -> str:
    """What became of it: begun, waiting, already, disabled, importing, failed."""
    if os.environ.get("GPUFRAG_DISABLE") == "1":
        return "disabled"
    torch = sys.modules.get("torch")
    if torch is not None and getattr(getattr(torch, "__spec__", None), "_initializing", False):
        return "importing"
    sys.path.append(library)  # for this one import, as the shim does it
    try:
        from gpufrag import agent
    finally:
        sys.path.remove(library)
    if _running():
        return "already"
    agent.wait()
    if _running():
        return "begun"
    return "failed" if torch is not None and torch.cuda.is_initialized() else "waiting"


def _running() -> bool:
    lifecycle = sys.modules.get("gpufrag.agent.lifecycle")
    return lifecycle is not None and lifecycle.running()


def answer(library: str) -> dict[str, Any]:
    """`state`, and the `error` where it failed."""
    try:
        return {"state": ask_for_agent(library)}
    except BaseException as error:
        return {"state": "failed", "error": f"{type(error).__name__}: {error}"}


def run(file: str, report: str) -> None:
    """The whole: `file` is this one, `report` where the answer is to appear, whole or not at all."""
    told = answer(os.path.dirname(os.path.dirname(os.path.dirname(file))))
    with open(f"{report}.tmp", "w", encoding="utf-8") as unfinished:
        json.dump(told, unfinished)
    os.replace(f"{report}.tmp", report)


if __name__ == NAME:
    run(__file__, globals()["REPORT"])
