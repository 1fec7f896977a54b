"""Errors of the Kubernetes API, as both sides of the wire know them.

The client raises `ApiError` from a Status object that it received; the local API server raises it and turns it into
one. Reasons and codes are those of Kubernetes, because kubectl, client-go and people's scripts act on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# reason -> HTTP code, for the reasons that Kubernetes defines.
CODES = {
    "BadRequest": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "NotAcceptable": 406,
    "AlreadyExists": 409,
    "Conflict": 409,
    "Gone": 410,
    "Expired": 410,
    "RequestEntityTooLarge": 413,
    "UnsupportedMediaType": 415,
    "Invalid": 422,
    "TooManyRequests": 429,
    "InternalError": 500,
    "ServiceUnavailable": 503,
    "Timeout": 504,
}
# The one reason of our own: a watch on which the server says nothing, which is nobody's fault where nothing changes.
SILENT = "Silent"


class ApiError(Exception):
    """A refusal by the API server. `details` is that of the Status object: name, group, kind, causes, retryAfter."""

    def __init__(
        self, reason: str, message: str, *, code: int | None = None, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.code = code if code is not None else CODES.get(reason, 500)
        self.details = details

    def __repr__(self) -> str:
        return f"ApiError({self.code} {self.reason}: {self.message})"

    def status(self) -> dict[str, Any]:
        """The Status object that goes over the wire."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            status["details"] = self.details
        return status

    @classmethod
    def from_status(cls, status: dict[str, Any], code: int) -> ApiError:
        """From a Status object, or from whatever a proxy on the way answered with instead."""
        of_code = next((reason for reason, each in CODES.items() if each == code), "Unknown")
        return cls(
            status.get("reason") or of_code,
            status.get("message") or f"the server answered {code}",
            code=status.get("code") or code,
            details=status.get("details"),
        )


def is_not_found(error: BaseException) -> bool:
    return isinstance(error, ApiError) and error.code == 404


def is_conflict(error: BaseException) -> bool:
    """A lost race on resourceVersion (not AlreadyExists, which has the same code)."""
    return isinstance(error, ApiError) and error.reason == "Conflict"


def is_already_exists(error: BaseException) -> bool:
    return isinstance(error, ApiError) and error.reason == "AlreadyExists"


class ignoring:
    """For a request whose refusal, of one of these kinds, is as good as success."""

    def __init__(self, *expected: Callable[[BaseException], bool]) -> None:
        self._expected = expected

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return error is not None and any(fits(error) for fits in self._expected)


def is_gone(error: BaseException) -> bool:
    """The resourceVersion asked for is compacted away: list again."""
    return isinstance(error, ApiError) and error.code == 410
