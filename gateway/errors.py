"""Errors as clients see them: OpenAI's shape, the right status, a stable code."""

from collections.abc import Mapping
from typing import Any

from core.errors import BatonError

INVALID = "invalid_request_error"
SERVER = "server_error"


class APIError(BatonError):
    """A request is answered with this status and this sentence."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """`{"error": {message, type, param, code}}`."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> Mapping[str, str]:
        """Tells clients when a retry can help, and where it cannot."""
        if self.retry_after is not None:
            return {"retry-after": f"{max(1, round(self.retry_after))}"}
        return {"x-should-retry": "false"} if self.status >= 500 else {}


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> APIError:
    """The request itself is wrong: 400."""
    return APIError(400, message, param=param, code=code)


def unavailable(message: str, code: str, retry_after: float = 1.0) -> APIError:
    """Nothing is wrong with the request, but nobody can take it now: 503."""
    return APIError(503, message, kind=SERVER, code=code, retry_after=retry_after)


def failed(message: str, code: str) -> APIError:
    """The request was taken and could not be finished: 500."""
    return APIError(500, message, kind=SERVER, code=code)


def timed_out(seconds: float) -> APIError:
    """The request's deadline has passed: 504. Doing it again would take as long."""
    return APIError(504, f"the request was not finished within {seconds:g} s", kind=SERVER, code="deadline_exceeded")


def of_status(status: int, path: str, method: str) -> APIError:
    """What a wrong path or method gets."""
    if status == 404:
        return APIError(404, f"there is no {path} here", code="not_found")
    if status == 405:
        return APIError(405, f"{path} does not take {method}", code="method_not_allowed")
    return APIError(status, f"{method} {path} was refused", kind=SERVER if status >= 500 else INVALID, code="refused")
