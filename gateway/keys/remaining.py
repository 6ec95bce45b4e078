"""Describes the remaining limits of a key, in OpenAI's headers, and in a sentence when a limit is reached. Pure."""

from collections.abc import Mapping

from msgspec import Struct

from gateway.errors import APIError
from gateway.keys.caller import RateLimits
from gateway.keys.window import RateWindow
from infra.redis.rates import RateUsage

SLOT_SECONDS = 1.0  # s after which a request in progress may have ended


class LimitReached(APIError):
    """Refusal of a request beyond a limit of its key, with headers about each limit."""

    def __init__(self, message: str, retry_after: float, limit_headers: Mapping[str, str]) -> None:
        super().__init__(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after=retry_after)
        self.limit_headers = limit_headers

    def headers(self) -> Mapping[str, str]:
        return {**super().headers(), **self.limit_headers}


class Remaining(Struct, frozen=True):
    """The usage of a key when a request is counted, including this request."""

    limits: RateLimits
    requests: RateWindow
    tokens: RateWindow
    leases: int

    @staticmethod
    def of(limits: RateLimits, counted: RateUsage, now: float) -> "Remaining":
        """`now` is the server's time, s."""
        return Remaining(limits, RateWindow(counted.requests, now), RateWindow(counted.tokens, now), counted.leases)

    def headers(self) -> dict[str, str]:
        """Returns `x-ratelimit-*` of the limits per minute; `reset` is the time until the whole limit is free again."""
        told = {}
        bounds = (("requests", self.limits.requests_per_minute), ("tokens", self.limits.tokens_per_minute))
        for (what, most), window in zip(bounds, (self.requests, self.tokens), strict=True):
            if most:
                told[f"x-ratelimit-limit-{what}"] = f"{most}"
                told[f"x-ratelimit-remaining-{what}"] = f"{max(0, most - window.used)}"
                told[f"x-ratelimit-reset-{what}"] = duration(window.empty())
        return told

    def refusal(self, tokens: int) -> LimitReached | None:
        """Returns the refusal of a request that may use up to `tokens` tokens; None if it is within the limits."""
        limits, told = self.limits, self.headers()
        if limits.concurrency and self.leases > limits.concurrency:
            message = f"this key may have {limits.concurrency} requests in progress, and uses all of them"
            return LimitReached(message, SLOT_SECONDS, told)
        if limits.requests_per_minute and self.requests.used > limits.requests_per_minute:
            wait = self.requests.wait(limits.requests_per_minute)
            message = f"this key may send {limits.requests_per_minute} requests per minute, and has sent them"
            return LimitReached(f"{message}; the next one fits in {duration(wait)}", wait, told)
        if limits.tokens_per_minute and self.tokens.used > limits.tokens_per_minute:
            wait = self.tokens.wait(limits.tokens_per_minute)
            used = max(0, self.tokens.used - tokens)
            message = f"this key may use {limits.tokens_per_minute} tokens per minute and has used {used}"
            return LimitReached(f"{message}; {tokens} more fit in {duration(wait)}", wait, told)
        return None


def duration(seconds: float) -> str:
    """Writes a time as OpenAI does: `17ms`, `8.64s`, `1m0.5s`."""
    milliseconds = round(1000 * seconds)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{rest / 1000:g}s"
