"""Routes as an ASGI app."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.routing import Route


def only(routes: Sequence[Route]) -> Starlette:
    """Only these paths: a slash too many is 404, not a redirect to whatever host the client has named."""
    made = Starlette(routes=routes)
    made.router.redirect_slashes = False
    return made
