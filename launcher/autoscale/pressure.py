"""Says how hard a role is pressed: predicted figures as shares of what they may be. Above 1: too few workers. Pure.

Prompts press by the predicted time to the first token, which has all that waits in it, and by how busy those that come
would keep the workers: where prompts come by chance, queues are short on average until shortly before they never end,
so a short queue alone says nothing about one worker fewer. Refused prompts count as come. Decodes press by the
predicted time for each token and by the KV blocks in use. Both are predicted for as many workers as one asks for, from
what there is now; so a worker goes only if those that stay would have room for all (a peer compared the present figures
with a fixed share of the objective, and went up and down between one worker and two: ai-dynamo/dynamo, pull 9294).
"""

from collections.abc import Iterable

from contracts.slo import SLO
from pricing.standing import RoleStanding, Standing

MAX_BUSY_PREFILL = 0.8
"""Share of a prefill worker's time that prompts may take."""
MAX_BUSY_DECODE = 0.5
"""The same of a worker that decodes too."""
MAX_USED_BLOCKS = 0.9
"""Share of the KV blocks that may be in use."""
TTFT_SHARE = 0.5
"""Share of the objective that the predicted time to the first token may take: where a gateway refuses, it refuses above
some such share, so that more is never seen."""
TPOT_SHARE = 0.9
"""Share of the objective that the predicted time for each token may take."""
MIN_TTFT_RATIO, TOKEN_ALONE = 2.0, 1.2
"""So many times what a request alone takes are within the objective in any case: no number of workers helps there."""


def pressure(standing: Standing, role: str, workers: int, slo: SLO) -> float | None:
    """Returns the pressure that a role would be under with so many workers, from what there is now; None: unknown."""
    stands = standing.prefill if role == "prefill" else standing.decode
    if not stands.serving:
        return None
    if role == "prefill":
        return of_prompts(stands, workers, slo, MAX_BUSY_PREFILL)
    decodes = of_decodes(stands, workers, slo)
    return decodes if standing.prefill.workers else max(decodes, of_prompts(stands, workers, slo, MAX_BUSY_DECODE))


def of_prompts(stands: RoleStanding, workers: int, slo: SLO, busy: float) -> float:
    """Returns the pressure of prompts on so many workers."""
    alone = _mean(one.ttft_alone for one in stands.serving)
    ttft = stands.ttft(workers)
    assert ttft is not None
    return max(ttft / max(TTFT_SHARE * slo.ttft_ms / 1000, MIN_TTFT_RATIO * alone), stands.work / (busy * workers))


def of_decodes(stands: RoleStanding, workers: int, slo: SLO) -> float:
    """Returns the pressure of what decodes on so many workers."""
    alone = _mean(one.tpot_alone for one in stands.serving)
    tpot = stands.tpot(workers)
    assert tpot is not None
    longest = max(TPOT_SHARE * slo.tpot_ms / 1000, TOKEN_ALONE * alone)
    return max(tpot / longest, stands.used_blocks(workers) / MAX_USED_BLOCKS)


def _mean(values: Iterable[float | None]) -> float:
    found = [value or 0.0 for value in values]
    return sum(found) / len(found)
