"""Compares moving KV blocks from the host tier with computing them again, by rates measured at the start."""

from msgspec import Struct

MOVE_SECONDS = 1e-4  # seconds to choose, gather and scatter blocks, whatever their number


class StartRates(Struct, frozen=True):
    """Rates that a worker measured when it started; 0: not measured, or there is no host tier."""

    prompt_tokens_per_second: float = 0.0
    host_bytes_per_second: float = 0.0  # between the KV pool and the host tier


def worth_bringing_back(blocks: int, block_bytes: int, block_tokens: int, rates: StartRates) -> bool:
    """Returns whether moving `blocks` full blocks from the host tier takes less time than computing their tokens again.

    `block_bytes`: bytes of a block in all layers. An unknown prompt rate counts as slow, and so does an unknown host
    rate.
    """
    if blocks <= 0 or rates.host_bytes_per_second <= 0:
        return False
    return move_seconds(blocks, block_bytes, rates) * rates.prompt_tokens_per_second < blocks * block_tokens


def move_seconds(blocks: int, block_bytes: int, rates: StartRates) -> float:
    """Returns the seconds in which `blocks` blocks move to or from the host tier; its rate must be known."""
    return MOVE_SECONDS + blocks * block_bytes / rates.host_bytes_per_second
