"""Pressure on a role: predicted figures divided by their limits. Above 1 there are too few workers. Pure.

    prompts    max(ttft(m) / limit, work / (busy · m))       limit = max(TTFT_SHARE · objective, MIN_TTFT_RATIO · alone)
    decodes    max(tpot(m) / limit, used blocks / MAX_USED_BLOCKS)

for m workers (`pricing/scaling/standing.py`). A short queue alone says nothing about m - 1 workers: queues of random
arrivals stay short until shortly before they grow without end, hence the work that arrives, refused prompts included.
With predictions for m - 1 workers a worker goes only if the others can serve all (a peer compared present figures with
a fixed share of the objective, and swung between one worker and two: ai-dynamo/dynamo, pull 9294).
"""

from collections.abc import Iterable

from contracts.slo import SLO
from pricing.scaling.standing import RoleStanding, Standing

MAX_BUSY_PREFILL = 0.8
"""Largest share of a prefill worker's time for prompts."""
MAX_BUSY_DECODE = 0.5
"""Largest share of a decode worker's time for prompts."""
MAX_USED_BLOCKS = 0.9
"""Largest share of KV blocks in use."""
TTFT_SHARE = 0.5
"""Largest predicted TTFT as a share of the objective: gateways refuse requests above some such share, so that a higher
one is never seen."""
TPOT_SHARE = 0.9
"""Largest predicted time per token as a share of the objective."""
MIN_TTFT_RATIO, TOKEN_ALONE = 2.0, 1.2
"""Multiples of the times of a request alone that are within the limits in any case: more workers would not help."""


def pressure(standing: Standing, role: str, workers: int, slo: SLO) -> float | None:
    """Returns the pressure on a role with `workers` workers, from its present standing; None if unknown."""
    stands = standing.prefill if role == "prefill" else standing.decode
    if not stands.serving:
        return None
    if role == "prefill":
        return of_prompts(stands, workers, slo, MAX_BUSY_PREFILL)
    decodes = of_decodes(stands, workers, slo)
    return decodes if standing.prefill.workers else max(decodes, of_prompts(stands, workers, slo, MAX_BUSY_DECODE))


def of_prompts(stands: RoleStanding, workers: int, slo: SLO, busy: float) -> float:
    """Returns the pressure of prompts."""
    alone = _mean(one.ttft_alone for one in stands.serving)
    ttft = stands.ttft(workers)
    assert ttft is not None
    return max(ttft / max(TTFT_SHARE * slo.ttft_ms / 1000, MIN_TTFT_RATIO * alone), stands.work / (busy * workers))


def of_decodes(stands: RoleStanding, workers: int, slo: SLO) -> float:
    """Returns the pressure of decodes."""
    alone = _mean(one.tpot_alone for one in stands.serving)
    tpot = stands.tpot(workers)
    assert tpot is not None
    longest = max(TPOT_SHARE * slo.tpot_ms / 1000, TOKEN_ALONE * alone)
    return max(tpot / longest, stands.used_blocks(workers) / MAX_USED_BLOCKS)


def _mean(values: Iterable[float | None]) -> float:
    found = [value or 0.0 for value in values]
    return sum(found) / len(found)
