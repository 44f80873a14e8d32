"""The environment in which a program finds the CUDA build of a torch release, and fake GPUs."""

import os
from collections.abc import Mapping

from .build import stubs
from .releases import torch_folder


def environment(release: str, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return os.environ with this release first on PYTHONPATH, the stubs on LD_LIBRARY_PATH, and `settings`.

    Downloads and builds what is missing. Raises Unavailable where that is not possible.
    """
    found = {**os.environ, "FAKE_CUDA_CAPABILITY": os.environ.get("FAKE_CUDA_CAPABILITY", "80"), **(settings or {})}
    for variable, folder in (("PYTHONPATH", torch_folder(release)), ("LD_LIBRARY_PATH", stubs(release))):
        found[variable] = os.pathsep.join(filter(None, [str(folder), found.get(variable)]))
    return found
