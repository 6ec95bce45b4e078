"""Token ids of simulated prompts: equal spans have equal ids, and ids are shared, since their values decide nothing.

A draw of random ids for each token would take longer than all else that is simulated.
"""

from array import array
from collections.abc import Sequence

from workloads.request import Span

FIRST_SHARED_ID = 1 << 29
SHARED_IDS = array("I", range(FIRST_SHARED_ID, FIRST_SHARED_ID + (1 << 16)))
MIXING_FACTOR = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: the upper bits of a seed's multiples are spread evenly (Knuth, TAOCP 3, 6.4)."""
_WORD = (1 << 64) - 1


def token_ids(spans: Sequence[Span]) -> "array[int]":
    """Returns the ids of a prompt. A span begins with an id of its own; further ids are those of all spans."""
    ids = array("I")
    for span in spans:
        first = len(ids)
        for left in range(span.tokens, 0, -len(SHARED_IDS)):
            ids += SHARED_IDS[:left]
        ids[first] = (span.seed * MIXING_FACTOR & _WORD) >> 35  # below `FIRST_SHARED_ID`
    return ids
