"""Loaded at the start of every Python process under `gpufrag run`, because this folder is on PYTHONPATH.

It asks for an agent as soon as the process uses a GPU, steps aside, and lets the program's own sitecustomize run.
It never writes to stdout. An older Python than the agent's must be able to read it: its syntax is old on purpose.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FAILURES = "GPUFRAG_SHIM_FAILED"


def _wait_for_gpu():  # type: () -> None
    if sys.version_info < (3, 10) or os.environ.get("GPUFRAG_DISABLE") == "1":
        return
    library = os.environ.get("GPUFRAG_AGENT_PATH", "")
    if not os.path.isdir(os.path.join(library, "gpufrag")):  # none is named, or one outside this container
        # of the real folder: a process begun before an upgrade keeps the version that it began with
        library = os.path.dirname(os.path.dirname(os.path.realpath(HERE)))
    sys.path.append(library)  # for this one import; last, so that nothing there hides what the program has
    try:
        from gpufrag import agent
    finally:
        sys.path.remove(library)
    agent.wait()


def _step_aside(behind):  # type: (list[str]) -> None
    """Leave sys.path; and to the children, on PYTHONPATH, leave one mention of this folder, however many there are.

    To `behind` come the folders that Python has not looked in yet: a sitecustomize before this one may have called it.
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
    except OSError:  # the working folder is gone, so a relative entry leads nowhere
        return False


def _complain(error):  # type: (BaseException) -> None
    """Once for a whole tree of processes: the children inherit the count, and an agent among them publishes it."""
    before = os.environ.get(FAILURES, "")
    os.environ[FAILURES] = str(int(before) + 1 if before.isdigit() else 1)
    if not before and sys.stderr is not None:
        what = type(error).__name__ + ": " + str(error)
        sys.stderr.write("gpufrag: no agent (" + what + "); training goes on; GPUFRAG_DISABLE=1 turns it off\n")


def _quietly(action, *arguments):  # type: (object, *object) -> bool
    """Whether it went well. Whatever fails here must not reach the program; only its user's Ctrl-C does."""
    try:
        action(*arguments)  # type: ignore[operator]
        return True
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if action is not _complain:
            _quietly(_complain, error)
        return False


class _Behind:
    """A finder of one module, once: it looks no further than the folders that it is given."""

    def __init__(self, path):  # type: (list[str]) -> None
        self._path = path

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "sitecustomize":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, self._path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                return spec
        raise ImportError("there is no other", name=name)


def _run_next(behind):  # type: (list[str]) -> None
    """The sitecustomize that Python would have run without this one; its errors are its own, as they would be."""
    this = sys.modules.pop("sitecustomize", None)
    if sys.version_info >= (3, 4):  # noqa: UP036  # older ones know no such finder, and look through the whole path
        sys.meta_path.insert(0, _Behind(behind))
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  # the next: this folder has left the path
    except ImportError as error:
        if getattr(error, "name", str(error).rpartition(" ")[2]) != "sitecustomize":
            raise
        if this is not None:  # there is none
            sys.modules["sitecustomize"] = this


_quietly(_wait_for_gpu)
_behind = []  # type: list[str]
if _quietly(_step_aside, _behind):  # else it is this one that would be found again
    _run_next(_behind)
