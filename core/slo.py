"""Computes latency figures of a request, and whether it is good. Definitions as in `docs/design.md`, Words."""

from collections.abc import Sequence

from msgspec import Struct


class Timings(Struct, frozen=True):
    """Holds the times of one finished request, in milliseconds."""

    ttft_ms: float
    e2e_ms: float
    output_tokens: int

    def tpot_ms(self) -> float:
        """Returns (end-to-end - TTFT) / (output tokens - 1); 0 for a single token."""
        return (self.e2e_ms - self.ttft_ms) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


class SLO(Struct, frozen=True):
    """Holds the limits that a request has to meet, in milliseconds."""

    ttft_ms: float
    tpot_ms: float

    def met_by(self, timings: Timings) -> bool:
        """Tells whether a request's times are within their limits."""
        return self.met(timings.ttft_ms, timings.tpot_ms())

    def met(self, ttft_ms: float, tpot_ms: float) -> bool:
        """Tells whether both figures are within their limits."""
        return ttft_ms <= self.ttft_ms and tpot_ms <= self.tpot_ms


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` of the values do not exceed (nearest rank); 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)
    return ordered[min(rank, len(ordered) - 1)]
