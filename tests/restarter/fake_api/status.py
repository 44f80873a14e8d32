"""Answers of failures: a Status, or plain text if the server has no such path."""

from __future__ import annotations

from typing import Any

from restarter.fake_api.served import Served


class ApiError(Exception):
    """An answer outside 2xx."""

    def __init__(self, code: int, reason: str, message: str, details: Any = None, **headers: str) -> None:
        super().__init__(message)
        self.code = code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details or {},
            "code": code,
        }


class NoSuchPath(Exception):
    """404 with the plain text of Go's web server."""


def success() -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def qualified(served: Served) -> str:
    return f"{served.plural}.{served.group}" if served.group else served.plural


def not_found(served: Served, name: str) -> ApiError:
    details = {"name": name, "kind": served.plural, **({"group": served.group} if served.group else {})}
    return ApiError(404, "NotFound", f'{qualified(served)} "{name}" not found', details)


def already_exists(served: Served, name: str) -> ApiError:
    details = {"name": name, "kind": served.plural}
    return ApiError(409, "AlreadyExists", f'{qualified(served)} "{name}" already exists', details)


def conflict(served: Served, name: str) -> ApiError:
    text = "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {qualified(served)} "{name}": {text}'
    return ApiError(409, "Conflict", message, {"name": name, "kind": served.plural})


def uid_differs(served: Served, name: str, wanted: str, is_: str) -> ApiError:
    message = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {is_}"
    return ApiError(
        409, "Conflict", f'Operation cannot be fulfilled on {qualified(served)} "{name}": {message}', {"name": name}
    )


def invalid(served: Served, name: str, causes: list[tuple[str, str]]) -> ApiError:
    """`causes`: pairs of field and message."""
    text = ", ".join(f"{field}: Invalid value: {message}" for field, message in causes)
    details = {
        "name": name,
        "kind": served.kind,
        "causes": [{"reason": "FieldValueInvalid", "field": field, "message": message} for field, message in causes],
    }
    return ApiError(422, "Invalid", f'{served.kind} "{name}" is invalid: {text}', details)


def forbidden(user: str, verb: str, served: Served, resource: str, namespace: str) -> ApiError:
    message = (
        f'{qualified(served)} is forbidden: User "{user}" cannot {verb} resource "{resource}" '
        f'in API group "{served.group}" in the namespace "{namespace}"'
    )
    return ApiError(403, "Forbidden", message, {"kind": resource})


def terminating(namespace: str) -> ApiError:
    message = f"unable to create new content in namespace {namespace} because it is being terminated"
    return ApiError(403, "Forbidden", message, {"causes": [{"reason": "NamespaceTerminating"}]})


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def unsupported_media_type(given: str, taken: list[str]) -> ApiError:
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(taken)}"
    return ApiError(415, "UnsupportedMediaType", message, {"given": given})


def disruption_budget(name: str) -> ApiError:
    """Without Retry-After."""
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    cause = {"reason": "DisruptionBudget", "message": f"The disruption budget {name} needs more healthy pods"}
    return ApiError(429, "TooManyRequests", message, {"causes": [cause]})
