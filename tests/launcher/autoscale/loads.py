"""Makes what a policy sees of a load that is spread evenly over some workers, from the cost model's formulas."""

from typing import NamedTuple

from pricing.scaling.standing import RoleStanding, Standing, WorkerStanding

ALONE, EACH = 0.02, 0.0005
"""Seconds of a decode step for one sequence, and for each further one."""
PROMPT_S = 0.1
"""Seconds of a usual prompt."""
POOL_BLOCKS = 1000
OF_A_SEQUENCE = 10
"""Blocks of a sequence."""


class Offered(NamedTuple):
    work: float = 0.0  # s of prompts in a second
    queued: float = 0.0  # s of prompts that wait, on all workers together
    tokens: float = 0.0  # output tokens a second, of all workers together


def seen(load: Offered, prefill: int, decode: int) -> Standing:
    rate = load.tokens / decode
    step = ALONE / (1 - EACH * rate) if EACH * rate < 0.9 else 10 * ALONE  # where they would pile up: so far
    sequences = round(rate * step)
    tpot = ALONE + EACH * sequences
    used = min(POOL_BLOCKS, OF_A_SEQUENCE * sequences)
    prefills = tuple(
        WorkerStanding(
            f"p{number}", ttft=PROMPT_S + load.queued / prefill, ttft_alone=PROMPT_S, tpot=ALONE, tpot_alone=ALONE
        )
        for number in range(prefill)
    )
    decodes = tuple(
        WorkerStanding(
            f"d{number}", ttft=PROMPT_S, ttft_alone=PROMPT_S, tpot=tpot, tpot_alone=ALONE,
            sequences=sequences, blocks=POOL_BLOCKS, free_blocks=POOL_BLOCKS - used,
        )
        for number in range(decode)
    )  # fmt: skip
    return Standing(RoleStanding(prefills, load.work, 0, 100.0), RoleStanding(decodes, 0.0, 0, 100.0))
