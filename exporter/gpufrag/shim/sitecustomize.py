"""Runs at the start of every Python process that has this folder on PYTHONPATH. It never writes to stdout.

It waits for the process to use a GPU, removes its folder from sys.path, and runs the program's own sitecustomize.
usercustomize.py and a .pth file (gpufrag install-agent --python) run the same code, for processes in which another
sitecustomize comes first. Python 2 must be able to parse this file.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FAILURES = "GPUFRAG_SHIM_FAILED"


def _wait_for_gpu():  # type: () -> None
    if sys.version_info < (3, 10) or os.environ.get("GPUFRAG_DISABLE") == "1":
        return
    library = os.environ.get("GPUFRAG_AGENT_PATH", "")
    if not os.path.isdir(os.path.join(library, "gpufrag")):  # not set, or not in this container
        # resolved, so that a process started before an upgrade keeps its version
        library = os.path.dirname(os.path.dirname(os.path.realpath(HERE)))
    sys.path.append(library)  # for this import only, and last, so that it hides nothing of the program's
    try:
        from gpufrag import agent
    finally:
        sys.path.remove(library)
    agent.wait()


def _leave_path(behind):  # type: (list[str]) -> None
    """Remove this folder from sys.path, and repeated mentions of it from the children's PYTHONPATH.

    `behind` receives the folders after it, where the next sitecustomize may be.
    """
    here = [_is_here(entry) for entry in sys.path]
    before = here.index(True) if True in here else 0
    sys.path[:] = [entry for entry, is_here in zip(sys.path, here) if not is_here]
    behind += sys.path[before:]
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    mentions = [place for place, entry in enumerate(entries) if entry and _is_here(entry)]
    if len(mentions) > 1:
        kept = [entry for place, entry in enumerate(entries) if place not in mentions[1:]]
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)


def _is_here(entry):  # type: (str) -> bool
    try:
        return os.path.abspath(entry) == HERE
    except OSError:  # the working directory is gone
        return False


def _report(error):  # type: (BaseException) -> None
    """Print once for a tree of processes; children inherit the count, and an agent among them publishes it."""
    before = os.environ.get(FAILURES, "")
    os.environ[FAILURES] = str(int(before) + 1 if before.isdigit() else 1)
    if not before and sys.stderr is not None:
        what = type(error).__name__ + ": " + str(error)
        sys.stderr.write("gpufrag: no agent (" + what + "); training continues; GPUFRAG_DISABLE=1 disables gpufrag\n")


def _succeeds(action, *arguments):  # type: (object, *object) -> bool
    """Run `action`; nothing that fails here may reach the program, except its user's Ctrl-C."""
    try:
        action(*arguments)  # type: ignore[operator]
        return True
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if action is not _report:
            _succeeds(_report, error)
        return False


class _Behind:
    """A finder that finds one module, once, in the given folders only."""

    def __init__(self, name, path):  # type: (str, list[str]) -> None
        self._name, self._path = name, path

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, self._path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                return spec
        raise ImportError("there is no other", name=name)


def _run_next(name, behind):  # type: (str, list[str]) -> None
    """Run the module that Python would have run without this one; its errors are the program's own."""
    this = sys.modules.pop(name, None)
    if sys.version_info >= (3, 4):  # noqa: UP036  # older ones search the whole path
        sys.meta_path.insert(0, _Behind(name, behind))
    try:
        __import__(name)
    except ImportError as error:
        if getattr(error, "name", str(error).rpartition(" ")[2]) != name:
            raise
        if this is not None:  # there is no other
            sys.modules[name] = this


_succeeds(_wait_for_gpu)
if __name__ != "gpufrag_pth":  # a .pth file runs before any sitecustomize
    _behind = []  # type: list[str]
    if _succeeds(_leave_path, _behind):  # else this folder would be found again
        _run_next("usercustomize" if __name__ == "usercustomize" else "sitecustomize", _behind)
