"""Errors as clients see them: the right status, a stable code, and the shape of the API that was asked."""

import math
import re
from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from contracts.errors import BatonError

INVALID_REQUEST = "invalid_request_error"
SERVER_FAULT = "server_error"
MAX_NAMED_ADAPTERS = 16  # adapters that one message names
ANTHROPIC_PATH = "/v1/messages"  # this path and all paths below it belong to Anthropic's API
OLLAMA_PATH = "/api"  # all paths below it are Ollama's
MODELS_PATH = "/v1/models"  # … and so do these, for requests with Anthropic's header
API = Literal["openai", "anthropic", "ollama"]
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class APIError(BatonError):
    """An error answer: a status and a sentence."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,  # s
        anthropic: str = "",  # message for Anthropic's clients, if they recognize other words
    ) -> None:
        super().__init__(message)
        self.anthropic = anthropic
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def refuses(self) -> bool:
        """Whether the same request may succeed later: 429 or 503."""
        return self.status in (429, 503)

    def body(self) -> dict[str, Any]:
        """Returns the body of the answer as OpenAI has it: `{"error": {message, type, param, code}}`."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def anthropic_body(self, request: str) -> dict[str, Any]:
        """Returns the body as Anthropic has it: `{"type", "error": {type, message, details}, "request_id"}`."""
        error: dict[str, Any] = {
            "type": _ANTHROPIC_TYPES.get(self.status, INVALID_REQUEST if self.status < 500 else "api_error"),
            "message": self.anthropic or self.message,
        }
        if self.code is not None:
            error["details"] = {"error_code": self.code}
        return {"type": "error", "error": error, "request_id": request}

    def ollama_body(self) -> dict[str, Any]:
        """Returns the body as Ollama has it, and the code: `{"error": message, "code"}`."""
        return {"error": self.message, "code": self.code}

    def body_for(self, api: API, request: str) -> dict[str, Any]:
        """Returns the body in the shape of the API that was asked; `request` is the request's id."""
        match api:
            case "anthropic":
                return self.anthropic_body(request)
            case "ollama":
                return self.ollama_body()
        return self.body()

    def headers(self) -> Mapping[str, str]:
        """Returns headers that tell clients when a retry can help, if it can."""
        if self.retry_after is not None:
            milliseconds = f"{max(1, round(1000 * self.retry_after))}"  # the official clients read this header first
            return {"retry-after": f"{max(1, math.ceil(self.retry_after))}", "retry-after-ms": milliseconds}
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        return {"x-should-retry": "false"} if self.status >= 500 else {}


def is_anthropic(path: str, headers: Container[str]) -> bool:
    """Returns whether a path with these headers belongs to Anthropic's API."""
    return _is_below(path, ANTHROPIC_PATH) or ("anthropic-version" in headers and _is_below(path, MODELS_PATH))


def api_of(path: str, headers: Container[str] = ()) -> API:
    """Returns the API that a path with these headers belongs to."""
    if is_anthropic(path, headers):
        return "anthropic"
    ollama = _is_below(path, OLLAMA_PATH) and not _is_below(path, f"{OLLAMA_PATH}/v1")  # a wrong base URL of OpenAI's
    return "ollama" if ollama else "openai"


def _is_below(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}/")


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Renames fields in errors raised inside: `names` maps this module's field names to another API's."""
    try:
        yield
    except APIError as error:
        path = error.param or ""
        field = re.match(r"\w*", path)
        assert field is not None
        if field[0] not in names:
            raise
        other = names[field[0]]
        message = re.sub(rf"\b{field[0]}\b", other, error.message)
        raise APIError(
            error.status,
            message,
            kind=error.kind,
            param=other + path[field.end() :],
            code=error.code,
            retry_after=error.retry_after,
            anthropic=error.anthropic,
        ) from None


def invalid(message: str, param: str | None = None, code: str = "invalid_value", anthropic: str = "") -> APIError:
    return APIError(400, message, param=param, code=code, anthropic=anthropic)


def revoked() -> APIError:
    return APIError(401, "this API key was revoked while it was in use", code="invalid_api_key")


def conflict(message: str, param: str) -> APIError:
    return invalid(message, param, "conflicting_parameters")


def unavailable(message: str, code: str, retry_after: float = 1.0) -> APIError:
    """Returns a 503: the request is valid, but cannot be served for `retry_after` seconds."""
    return APIError(503, message, kind=SERVER_FAULT, code=code, retry_after=retry_after)


def failed(message: str, code: str) -> APIError:
    return APIError(500, message, kind=SERVER_FAULT, code=code)


def timed_out(seconds: float) -> APIError:
    """Returns a 504: the request's deadline has passed. Doing it again would take as long."""
    return APIError(
        504, f"the request was not finished within {seconds:g} s", kind=SERVER_FAULT, code="deadline_exceeded"
    )


def no_model(name: str, model: str, adapters: Collection[str], param: str = "model") -> APIError:
    """Returns a 404: `name` is neither the server's model nor one of its adapters."""
    more = f" and the adapters {', '.join(map(repr, sorted(adapters)[:MAX_NAMED_ADAPTERS]))}" if adapters else ""
    more += ", …" if len(adapters) > MAX_NAMED_ADAPTERS else ""
    message = f"the model {name!r} does not exist; this server has {model!r}{more}"
    return APIError(404, message, param=param, code="model_not_found")


def error_of_status(status: int, path: str, method: str, near: str | None) -> APIError:
    """Returns the error for an unknown path or method; `near` is a similar path that exists."""
    if status == 404:
        hint = f"; there is {near}: is the client's base URL right?" if near is not None else ""
        return APIError(404, f"there is no {path} here{hint}", code="not_found")
    if status == 405:
        return APIError(405, f"{path} does not take {method}", code="method_not_allowed")
    return APIError(
        status, f"{method} {path} was refused", kind=SERVER_FAULT if status >= 500 else INVALID_REQUEST, code="refused"
    )


def not_offered(path: str, what: str, instead: str) -> APIError:
    return APIError(404, f"this server does not offer {what} ({path}): {instead}", code="not_offered")
