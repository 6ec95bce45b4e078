"""What a client saw of one request, measured or simulated."""

from msgspec import Struct

from contracts.slo import Timings


class RequestOutcome(Struct, frozen=True):
    """One request as its client saw it: times, or an error. Seconds count from the load's start."""

    due_s: float
    sent_s: float
    ended_s: float
    timings: Timings | None = None
    gaps_ms: tuple[float, ...] = ()
    """Times between the pieces of the answer."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the server found in a cache, if it tells."""
    error: str = ""
    sender: str = ""
    """The name of the API key, if a load has several keys."""
    own_delays_ms: tuple[float, float] = (0.0, 0.0)
    """By how much the first token, and the last, may have come before the client read it."""
    gap_counts: tuple[int, ...] = ()
    """How often each of `gaps_ms` came in a row; (): once."""
