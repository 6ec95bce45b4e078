"""Cross-origin access (CORS): which web pages of other sites may call this server and read its answers."""

import re
from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers

from contracts.errors import ConfigError

CLOSED_PATHS = frozenset({"/stats", "/metrics"})  # operators' figures, closed to web pages
ALLOWED_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
DEFAULT_HEADERS = "authorization, content-type, x-api-key, x-request-id, x-slo-ttft-ms, x-slo-tpot-ms"  # unasked
_LIMIT_HEADERS = (
    f"x-ratelimit-{name}-{what}" for what in ("requests", "tokens") for name in ("limit", "remaining", "reset")
)
EXPOSED_HEADERS = ", ".join(
    ("x-request-id", "request-id", "retry-after", "retry-after-ms", "x-should-retry", "server-timing", *_LIMIT_HEADERS)
)
MAX_AGE_S = "600"  # s for which a browser may cache the preflight answer
_ORIGIN_REGEX = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s,]+|null", re.IGNORECASE)
_HEADER_NAMES_REGEX = re.compile(r"[\w!#$%&'*+.^`|~,\- ]{1,2048}", re.ASCII)  # list of header names


class CrossOrigin:
    """Decides by origin. `allowed` lists origins with commas, or is `*` for all, or empty for none.

    Credentials that browsers send by themselves (cookies) are never allowed: a page has to send its API key itself.
    Raises `ConfigError` for an invalid origin.
    """

    def __init__(self, allowed: str) -> None:
        self._allowed = frozenset(part.strip().lower() for part in allowed.split(",") if part.strip())
        wrong = next((one for one in self._allowed if one != "*" and not _ORIGIN_REGEX.fullmatch(one)), None)
        if wrong is not None:
            raise ConfigError("--allow-origins", wrong, "it is no origin, such as https://host or https://host:port")

    def headers(self, path: str, request_headers: Headers) -> Mapping[str, str]:
        """Returns the CORS headers of an answer to a web page; empty for other clients."""
        origin = self._of(path, request_headers)
        if origin is None:
            return {}
        vary = {} if origin == "*" else {"vary": "origin"}
        exposed = {"access-control-expose-headers": EXPOSED_HEADERS, "timing-allow-origin": origin}
        return {"access-control-allow-origin": origin, **exposed, **vary}

    def preflight(self, path: str, request_headers: Headers) -> Mapping[str, str]:
        """Returns the CORS headers of a preflight answer."""
        if (origin := self.headers(path, request_headers)) == {}:
            return {}
        named = request_headers.get("access-control-request-headers", "")
        return {
            **origin,
            "access-control-allow-methods": ALLOWED_METHODS,
            "access-control-allow-headers": named if _HEADER_NAMES_REGEX.fullmatch(named) else DEFAULT_HEADERS,
            "access-control-max-age": MAX_AGE_S,
        }

    def _of(self, path: str, request_headers: Headers) -> str | None:
        """Returns the value of `access-control-allow-origin`; None if the page may not read the answer."""
        origin = request_headers.get("origin")
        if origin is None or path in CLOSED_PATHS:
            return None
        if "*" in self._allowed:
            return "*"
        return origin if origin.lower() in self._allowed else None


def is_preflight(request_headers: Headers) -> bool:
    return "origin" in request_headers and "access-control-request-method" in request_headers


def allow(methods: Sequence[str]) -> Mapping[str, str]:
    more = {"HEAD"} if "GET" in methods else set()
    return {"allow": ", ".join(sorted({*methods, *more, "OPTIONS"}))}
