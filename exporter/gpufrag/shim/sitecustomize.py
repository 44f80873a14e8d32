"""Loaded at the start of every Python process under `gpufrag run`, because this folder is on PYTHONPATH.

It asks for an agent as soon as the process uses a GPU, steps aside, and lets the program's own sitecustomize run.
It never writes to stdout. An older Python than the agent's must be able to read it: its syntax is old on purpose.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _wait_for_gpu() -> None:
    if sys.version_info < (3, 10) or os.environ.get("GPUFRAG_DISABLE") == "1":
        return
    library = os.environ.get("GPUFRAG_AGENT_PATH") or os.path.dirname(os.path.dirname(HERE))
    sys.path.append(library)  # for this one import; last, so that nothing there hides what the program has
    try:
        from gpufrag import agent
    finally:
        sys.path.remove(library)
    agent.wait()


def _complain(error: BaseException) -> None:
    """Once for a whole tree of processes: the children inherit the mark."""
    if "GPUFRAG_SHIM_FAILED" not in os.environ:
        os.environ["GPUFRAG_SHIM_FAILED"] = "1"
        what = type(error).__name__ + ": " + str(error)
        sys.stderr.write("gpufrag: no agent (" + what + "); training goes on; GPUFRAG_DISABLE=1 turns it off\n")


def _run_next() -> None:
    """The sitecustomize that Python would have run without this one; its errors are its own, as they would be."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  # the next: this folder has left the path
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if this is not None:  # there is none
            sys.modules["sitecustomize"] = this


try:
    _wait_for_gpu()
except (Exception, SystemExit) as error:
    _complain(error)
_run_next()
