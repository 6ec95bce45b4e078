"""The header `traceparent` of W3C's Trace Context, level 1 (https://www.w3.org/TR/trace-context/). Pure."""

import re

from msgspec import Struct

TRACE_HEADER = "traceparent"
_REGEX = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED_FLAG = 1


class TraceParent(Struct, frozen=True):
    """A position in a trace: the trace and the span that the bearer's spans belong to."""

    trace_id: int  # 128 bits, not 0
    span_id: int  # 64 bits, not 0
    sampled: bool

    def header(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def read_parent(text: str) -> TraceParent | None:
    """Returns the position in a header; None for a missing or malformed one, which the specification has ignored."""
    found = _REGEX.fullmatch(text.strip())
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    return TraceParent(trace_id, span_id, bool(int(found[4], 16) & SAMPLED_FLAG)) if trace_id and span_id else None
