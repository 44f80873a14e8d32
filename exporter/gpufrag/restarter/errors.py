"""What a cluster can answer instead of doing what it was asked.

GpufragError
├── Refused         a job that cannot be restarted, or not so; `reason` is a label, the text for people
└── ClusterError    the API server's answer, or that there was none
    ├── Conflict    409: somebody else changed or made the object first; read it again
    ├── NotFound    404: no such object, or no such kind on this server
    ├── Denied      401 or 403: the credentials are not good, or not good enough
    ├── Invalid     400, 415 or 422: the server will never take this request; a mistake of ours
    ├── TooMany     429: not now; `retry_after_s` where the server named a time
    └── Away        5xx, no connection, no answer in time: may have been done or not; try again
"""

from __future__ import annotations

from ..errors import GpufragError


class Refused(GpufragError):
    """A job that is not restarted, and what its owner can do about that."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ClusterError(GpufragError):
    """Base of all that a call to a cluster raises."""


class Conflict(ClusterError):
    """Another writer was first: nothing was done."""


class NotFound(ClusterError):
    """No such object or no such kind: nothing was done."""


class Denied(ClusterError):
    """Not permitted: nothing was done, nor will it be until somebody grants it."""


class Invalid(ClusterError):
    """The request is wrong in itself: nothing was done, and the same request never will be."""


class TooMany(ClusterError):
    """Nothing was done; worth another try after `retry_after_s` seconds (None: the server did not say)."""

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Away(ClusterError):
    """No answer that says whether it was done; worth another try, if need be after `retry_after_s` seconds."""

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
