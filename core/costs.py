"""Estimates what computing and moving KV cost, from sizes and from rates that were measured."""

from msgspec import Struct

GRAIN_BYTES = 8 << 20  # weights that one core reads in about half a millisecond
GRAIN_OPERATIONS = 1e8  # about a millisecond of one core
MOVE_SECONDS = 1e-4  # that moving blocks takes beside the time of their bytes: to choose, gather and scatter them


class Rates(Struct, frozen=True):
    """Holds what a worker measured when it started; 0: not measured, or there is no host tier."""

    prompt_tokens_per_second: float = 0.0
    host_bytes_per_second: float = 0.0  # between the KV pool and the host tier


def worth_bringing_back(blocks: int, block_bytes: int, block_tokens: int, rates: Rates) -> bool:
    """Tells whether `blocks` full blocks come back from the host tier sooner than their tokens are computed again.

    `block_bytes` are those of all layers. Without a prompt rate, computing counts as slow; without a host rate, moving.
    """
    if blocks <= 0 or rates.host_bytes_per_second <= 0:
        return False
    moving = MOVE_SECONDS + blocks * block_bytes / rates.host_bytes_per_second
    return moving * rates.prompt_tokens_per_second < blocks * block_tokens


def useful_threads(parameters: int, value_bytes: int, tokens: int) -> int:
    """Returns the number of threads that a step over `tokens` tokens is worth on a CPU.

    Every operator of a step starts and joins its threads. Where each has only microseconds of work, a second thread
    gains nothing, and on a busy host every join waits for a thread that is not on a core: measured with a model of
    2 million parameters beside two other busy processes, a decode step of 2 ms took 40 ms with two threads.
    """
    by_bytes = parameters * value_bytes / GRAIN_BYTES
    by_operations = 2 * parameters * tokens / GRAIN_OPERATIONS
    return max(1, int(max(by_bytes, by_operations)))
