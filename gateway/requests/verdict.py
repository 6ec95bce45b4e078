"""Judges whether a request that comes now would keep its objective: it goes, waits for a better moment, or is refused.

A request is refused as soon as it cannot have its first token in time, by what is expected of the best route: whoever
asks can go elsewhere, or come back when the backlog is shorter, and nobody else is slowed down for an answer that would
be too late. Where tokens would come too slowly, its own or those of somebody who runs there, a later moment may be
better, so it waits as long as its first token may. Pure.
"""

from enum import Enum
from typing import NamedTuple

from core.slo import Objective

SLOWER = 1.2
"""So many times as long may tokens take as is expected, since texts grow and others come."""
LEAST_PAUSE, MOST_PAUSE = 0.05, 60.0
"""Seconds after which it is worth to come back, at least and at most; clients do not wait for longer."""


class Answer(Enum):
    """Says what becomes of a request."""

    GOES = "goes"
    WAITS = "waits"
    REFUSED = "refused"


class Verdict(NamedTuple):
    """Holds the answer, why, in words, and after how many seconds a refused one may come back."""

    answer: Answer
    why: str = ""
    retry_after: float = 0.0


GOES = Verdict(Answer.GOES)


def judge(
    ttft: float | None,
    tpot: float | None,
    wanted: Objective,
    waited: float,
    others: float | None = None,
    sure: float = 1.0,
) -> Verdict:
    """Judges a request by what is expected on its best route; None where nobody knows, and then it goes.

    `ttft`: seconds from now to its first token. `tpot`: seconds for each token of everybody there, with it. `waited`:
    seconds since it came. `others`: seconds for each token that the strictest of those who run there wants. `sure`: how
    many times as long first tokens take as is expected, nearly always: no more is promised.
    """
    left = None if wanted.ttft_ms is None else wanted.ttft_ms / 1000 - waited
    if left is not None and ttft is not None and sure * ttft > left:
        assert wanted.ttft_ms is not None
        came = f" after {waited:.2f} s of waiting" if waited >= 0.01 else ""
        why = f"the first token is expected in {ttft:.2f} s{came}, and wanted within {wanted.ttft_ms / 1000:g} s"
        return Verdict(Answer.REFUSED, why, pause(sure * ttft - left))
    if tpot is None:
        return GOES
    if wanted.tpot_ms is not None and SLOWER * tpot > wanted.tpot_ms / 1000:
        why = f"a token is expected every {1000 * tpot:.0f} ms, and wanted every {wanted.tpot_ms:g} ms"
        return Verdict(Answer.WAITS, why)
    if others is not None and tpot > others:
        why = f"it would slow tokens down to {1000 * tpot:.0f} ms, and others want theirs every {1000 * others:g} ms"
        return Verdict(Answer.WAITS, why)
    return GOES


def pause(seconds: float) -> float:
    """Returns after how many seconds it is worth to come back, if something will be free after `seconds`."""
    return min(MOST_PAUSE, max(LEAST_PAUSE, seconds))
