"""Loaded at the start of every Python process under `gpufrag run`, because this folder is on PYTHONPATH.

It asks for an agent as soon as the process uses a GPU, steps aside, and lets the program's own sitecustomize run.
It never writes to stdout. An older Python than the agent's must be able to read it: its syntax is old on purpose.
"""

import importlib
import os
import sys
from importlib import machinery, util

HERE = os.path.dirname(os.path.abspath(__file__))


def _wait_for_gpu() -> None:
    if sys.version_info < (3, 10) or os.environ.get("GPUFRAG_DISABLE") == "1":
        return
    if "gpufrag" not in sys.modules:
        library = os.environ.get("GPUFRAG_AGENT_PATH") or os.path.dirname(os.path.dirname(HERE))
        _load(os.path.join(library, "gpufrag"))
    importlib.import_module("gpufrag.agent").wait()


def _load(folder: str) -> None:
    """The package from its own folder: nothing else that lies beside it becomes importable."""
    init = os.path.join(folder, "__init__.py")
    spec = util.spec_from_file_location("gpufrag", init, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        raise ImportError("not a package: " + folder)
    module = util.module_from_spec(spec)
    sys.modules["gpufrag"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["gpufrag"]
        raise


def _complain(error: BaseException) -> None:
    """Once for a whole tree of processes: the children inherit the mark."""
    if "GPUFRAG_SHIM_FAILED" not in os.environ:
        os.environ["GPUFRAG_SHIM_FAILED"] = "1"
        what = type(error).__name__ + ": " + str(error)
        sys.stderr.write("gpufrag: no agent (" + what + "); training goes on; GPUFRAG_DISABLE=1 turns it off\n")


def _run_next() -> None:
    """The sitecustomize that Python would have run without this one; its errors are its own, as they would be."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    spec = machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _wait_for_gpu()
except (Exception, SystemExit) as error:
    _complain(error)
_run_next()
