"""Latency figures and objectives of requests. docs/design.md defines the terms."""

import math
import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from contracts.errors import ConfigError

MAX_OBJECTIVE_MS = 3_600_000.0  # of the most lenient objective
_PART_PATTERN = re.compile(r"(ttft|tpot)=(\d{1,9}(?:\.\d{1,6})?)(ms|s)")
_EXPECTED_FORMAT = "expected ttft=2s,tpot=100ms, or one of the two, each from 1ms to 3600s"


class Timings(Struct, frozen=True):
    """The times of one finished request, in ms."""

    ttft_ms: float
    e2e_ms: float
    output_tokens: int

    def tpot_ms(self) -> float:
        """Returns (end-to-end - TTFT) / (output tokens - 1); 0 for a single token."""
        return (self.e2e_ms - self.ttft_ms) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


class SLO(Struct, frozen=True):
    """The limits of a good request, in ms."""

    ttft_ms: float
    tpot_ms: float

    def met_by(self, timings: Timings) -> bool:
        return self.met(timings.ttft_ms, timings.tpot_ms())

    def met(self, ttft_ms: float, tpot_ms: float) -> bool:
        return ttft_ms <= self.ttft_ms and tpot_ms <= self.tpot_ms


Missed = Literal["none", "ttft", "tpot", "both"]
"""Limits of an objective that a request has missed."""


class Objective(Struct, frozen=True):
    """The wanted times of a request, in ms; None: no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __bool__(self) -> bool:
        return self != NO_OBJECTIVE

    def over(self, other: "Objective") -> "Objective":
        """Returns this objective, with missing limits taken from `other`."""
        return Objective(
            other.ttft_ms if self.ttft_ms is None else self.ttft_ms,
            other.tpot_ms if self.tpot_ms is None else self.tpot_ms,
        )

    def bounded_by(self, granted: "Objective") -> "Objective":
        """Returns this objective, no stricter than `granted`; no limit where none is granted."""
        return Objective(_later(self.ttft_ms, granted.ttft_ms), _later(self.tpot_ms, granted.tpot_ms))

    def missed(self, ttft_ms: float, tpot_ms: float) -> Missed:
        """Returns which limits these times exceed."""
        late = self.ttft_ms is not None and ttft_ms > self.ttft_ms
        slow = self.tpot_ms is not None and tpot_ms > self.tpot_ms
        return "both" if late and slow else "ttft" if late else "tpot" if slow else "none"

    def limits(self, usual: SLO) -> SLO:
        """Returns the limits of a good request: this objective, or `usual` if it has none."""
        if not self:
            return usual
        return SLO(
            math.inf if self.ttft_ms is None else self.ttft_ms,
            math.inf if self.tpot_ms is None else self.tpot_ms,
        )


NO_OBJECTIVE = Objective()


def _later(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else max(first, second)


def parse_objective(text: str, key: str = "--slo") -> Objective:
    """Parses `ttft=2s,tpot=100ms`, or a part of it; empty: no objective. Raises `ConfigError` that names `key`.

    Example: parse_objective("tpot=50ms") == Objective(None, 50.0)
    """
    found: dict[str, float] = {}
    for part in text.replace(" ", "").split(",") if text.strip() else ():
        match = _PART_PATTERN.fullmatch(part)
        milliseconds = float(match[2]) * (1000 if match[3] == "s" else 1) if match else 0.0
        if match is None or match[1] in found or not 1 <= milliseconds <= MAX_OBJECTIVE_MS:
            raise ConfigError(key, text, _EXPECTED_FORMAT)
        found[match[1]] = milliseconds
    return Objective(found.get("ttft"), found.get("tpot"))


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` of the values do not exceed (nearest rank); 0 for none."""
    if not values:
        return 0.0
    return sorted(values)[nearest_rank(share, len(values))]


def nearest_rank(share: float, count: int) -> int:
    """Returns the place, from 0 on, of a share among `count` ordered values (nearest rank); `share` in thousandths."""
    return min(max(0, -(-int(share * 1000) * count // 1000) - 1), max(0, count - 1))
