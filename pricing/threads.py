"""Estimates how many of a CPU's threads a step keeps busy."""

GRAIN_BYTES = 8 << 20  # weights that one core reads in about half a millisecond
GRAIN_OPERATIONS = 1e8  # about a millisecond of one core


def useful_threads(parameters: int, value_bytes: int, tokens: int) -> int:
    """Returns the number of threads that a step over `tokens` tokens is worth on a CPU.

    Every operator of a step starts and joins its threads. Where each has only microseconds of work, a second thread
    gains nothing, and on a busy host every join waits for a thread that is not on a core: measured with a model of
    2 million parameters beside two other busy processes, a decode step of 2 ms took 40 ms with two threads.
    """
    by_bytes = parameters * value_bytes / GRAIN_BYTES
    by_operations = 2 * parameters * tokens / GRAIN_OPERATIONS
    return max(1, int(max(by_bytes, by_operations)))
