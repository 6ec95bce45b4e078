"""Token ids of simulated prompts: equal spans have equal ids, and ids are shared, since their values decide nothing.

A draw of random ids for each token would take longer than all else that is simulated.
"""

import random
from collections.abc import Sequence

from workloads.request import Span

FIRST_SHARED_ID = 1 << 30
SHARED_IDS = list(range(FIRST_SHARED_ID, FIRST_SHARED_ID + (1 << 16)))
MAX_ID = FIRST_SHARED_ID - 1


def token_ids(spans: Sequence[Span]) -> list[int]:
    """Returns the ids of a prompt. A span begins with an id of its own; further ids are those of all spans."""
    ids: list[int] = []
    for span in spans:
        ids.append(random.Random(span.seed).getrandbits(30))
        left = span.tokens - 1
        while left > 0:
            ids += SHARED_IDS[:left]
            left -= len(SHARED_IDS)
    return ids
