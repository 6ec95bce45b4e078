"""Decides by rates that were measured at the start: is it cheaper to move blocks of KV than to compute them again?"""

from msgspec import Struct

MOVE_SECONDS = 1e-4  # that moving blocks takes beside the time of their bytes: to choose, gather and scatter them


class StartRates(Struct, frozen=True):
    """Holds what a worker measured when it started; 0: not measured, or there is no host tier."""

    prompt_tokens_per_second: float = 0.0
    host_bytes_per_second: float = 0.0  # between the KV pool and the host tier


def worth_bringing_back(blocks: int, block_bytes: int, block_tokens: int, rates: StartRates) -> bool:
    """Tells whether `blocks` full blocks come back from the host tier sooner than their tokens are computed again.

    `block_bytes` are those of all layers. Without a prompt rate, computing counts as slow; without a host rate, moving.
    """
    if blocks <= 0 or rates.host_bytes_per_second <= 0:
        return False
    moving = MOVE_SECONDS + blocks * block_bytes / rates.host_bytes_per_second
    return moving * rates.prompt_tokens_per_second < blocks * block_tokens
