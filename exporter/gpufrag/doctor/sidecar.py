"""Whether the sidecar is ready, and of this version."""

from __future__ import annotations

import re

from .. import __version__
from ..web.client import Client
from .results import Fail, Ok, Result, Warn

VERSION = re.compile(r'^gpufrag_build_info\{[^}]*\bversion="([^"]{1,40})"', re.MULTILINE)


def ask(url: str) -> Result:
    client = Client(url)
    ready = client.get("/-/ready")
    said = ready.text.strip()[:300]
    if ready.status != 200:
        return Fail(f"{url}/-/ready answers {ready.status}: {said}")
    if said != "ready":
        return Warn(f"{url}/-/ready: {said}")
    metrics = client.get("/metrics")
    if metrics.status in (401, 403):
        return Ok(f"{url}: ready; its metrics take a password, so its version is not known")
    version = VERSION.search(metrics.text)
    if version is None:
        return Fail(f"{url}/metrics says no gpufrag_build_info; is it gpufrag's sidecar?")
    if version[1] != __version__:
        return Warn(f"{url} is of gpufrag {version[1]}, this is {__version__}; let both be of one release")
    return Ok(f"{url}: ready, {__version__}")
