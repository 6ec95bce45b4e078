"""Says which pages of other sites a browser lets ask this server, and read its answers (CORS)."""

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
MAX_AGE_S = "600"  # s for which a browser need not ask again
_ORIGIN_REGEX = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s,]+|null", re.IGNORECASE)
_HEADER_NAMES_REGEX = re.compile(r"[\w!#$%&'*+.^`|~,\- ]{1,2048}", re.ASCII)  # names of headers


class CrossOrigin:
    """Decides by origin. `allowed` are origins with commas between them, or `*` for all, or empty for none.

    Credentials that browsers send by themselves (cookies) are never allowed: an API key is something that a page has
    and says. Raises `ConfigError` for what is no origin.
    """

    def __init__(self, allowed: str) -> None:
        self._allowed = frozenset(part.strip().lower() for part in allowed.split(",") if part.strip())
        wrong = next((one for one in self._allowed if one != "*" and not _ORIGIN_REGEX.fullmatch(one)), None)
        if wrong is not None:
            raise ConfigError("--allow-origins", wrong, "it is no origin, such as https://host or https://host:port")

    def headers(self, path: str, asked: Headers) -> Mapping[str, str]:
        """Returns what an answer says to a browser that asked for a page's sake; nothing to others."""
        origin = self._of(path, asked)
        if origin is None:
            return {}
        vary = {} if origin == "*" else {"vary": "origin"}
        exposed = {"access-control-expose-headers": EXPOSED_HEADERS, "timing-allow-origin": origin}
        return {"access-control-allow-origin": origin, **exposed, **vary}

    def preflight(self, path: str, asked: Headers) -> Mapping[str, str]:
        """Returns what is said to a browser that asks before it sends a request."""
        if (origin := self.headers(path, asked)) == {}:
            return {}
        named = asked.get("access-control-request-headers", "")
        return {
            **origin,
            "access-control-allow-methods": ALLOWED_METHODS,
            "access-control-allow-headers": named if _HEADER_NAMES_REGEX.fullmatch(named) else DEFAULT_HEADERS,
            "access-control-max-age": MAX_AGE_S,
        }

    def _of(self, path: str, asked: Headers) -> str | None:
        """Returns the origin that is allowed to read the answer, as the answer names it."""
        origin = asked.get("origin")
        if origin is None or path in CLOSED_PATHS:
            return None
        if "*" in self._allowed:
            return "*"
        return origin if origin.lower() in self._allowed else None


def is_preflight(asked: Headers) -> bool:
    """Returns whether a browser asks whether it may ask."""
    return "origin" in asked and "access-control-request-method" in asked


def allow(methods: Sequence[str]) -> Mapping[str, str]:
    more = {"HEAD"} if "GET" in methods else set()
    return {"allow": ", ".join(sorted({*methods, *more, "OPTIONS"}))}
