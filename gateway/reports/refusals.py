"""Reports every request that is answered with an error: in a counter, and in a log line.

Requests without a valid key, which anyone may send, are logged together, in one line a minute.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from gateway.errors import APIError
from gateway.metrics.gateway_metrics import Metrics

UNAUTHENTICATED_LOG_INTERVAL_S = 60.0  # s between two lines about requests without a valid key
log = logging.getLogger("baton.gateway")


class Refusals:
    """Counts refused and failed requests, and logs them by their ids. Clients' words are never logged."""

    def __init__(self, metrics: Metrics, keyed: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._keyed = keyed
        self._clock = clock
        self._unauthenticated: Counter[str] = Counter()  # requests without a valid key since the last line, by code
        self._logged_at = -UNAUTHENTICATED_LOG_INTERVAL_S
        self.counts: Counter[str] = Counter()  # requests answered with 429 or 503, by code

    def report(self, error: APIError, request: str, tenant: str = "") -> None:
        """Reports that the request with this id is answered with this error; `tenant` is its caller's, if known."""
        self._metrics.tenants.refused(tenant, error.status, error.code or "error")
        code = self._count(error)
        if error.status == 401:
            self._count_unauthenticated(code)
            return
        # Messages about a client's mistake may repeat its words; messages about the server do not.
        why = f": {error.message}" if error.status >= 500 or error.status == 429 else ""
        level = logging.WARNING if error.status >= 500 else logging.INFO
        log.log(level, "request %s is answered %d %s%s", request, error.status, code, why, extra={"kind": code})

    def report_connection(self, error: APIError, request: str) -> None:
        """Reports a refusal before the request, or its key, is known."""
        if self._keyed:
            self._count_unauthenticated(self._count(error))
        else:
            self.report(error, request)

    async def run(self) -> None:
        """Logs the requests without a valid key every minute until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(UNAUTHENTICATED_LOG_INTERVAL_S)
                self._log_unauthenticated()
        finally:
            self._log_unauthenticated(last=True)

    def _count(self, error: APIError) -> str:
        code = error.code or "error"
        self._metrics.refused(error.status, code)
        self.counts[code] += error.refuses
        return code

    def _count_unauthenticated(self, code: str) -> None:
        self._unauthenticated[code] += 1
        self._log_unauthenticated()

    def _log_unauthenticated(self, last: bool = False) -> None:
        now = self._clock()
        if not self._unauthenticated or (now - self._logged_at < UNAUTHENTICATED_LOG_INTERVAL_S and not last):
            return
        codes = ", ".join(f"{code} {count}" for code, count in self._unauthenticated.items())
        log.info("requests refused for lack of a valid key: %d (%s)", self._unauthenticated.total(), codes)
        self._unauthenticated.clear()
        self._logged_at = now
