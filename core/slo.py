"""Latency figures of a request, and what makes it good. Definitions as in `docs/design.md`, Words."""

from collections.abc import Sequence

from msgspec import Struct


class Timings(Struct, frozen=True):
    """Of one finished request; milliseconds."""

    ttft_ms: float
    e2e_ms: float
    output_tokens: int

    def tpot_ms(self) -> float:
        """(end-to-end - TTFT) / (output tokens - 1); 0 for a single token."""
        return (self.e2e_ms - self.ttft_ms) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


class SLO(Struct, frozen=True):
    """The limits that a request has to meet."""

    ttft_ms: float
    tpot_ms: float

    def met_by(self, timings: Timings) -> bool:
        """Whether every limit holds."""
        return self.met(timings.ttft_ms, timings.tpot_ms())

    def met(self, ttft_ms: float, tpot_ms: float) -> bool:
        """Whether both figures are within their limits."""
        return ttft_ms <= self.ttft_ms and tpot_ms <= self.tpot_ms


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (nearest rank); 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)
    return ordered[min(rank, len(ordered) - 1)]
