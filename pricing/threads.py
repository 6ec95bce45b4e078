"""Number of CPU threads that a step can keep busy."""

GRAIN_BYTES = 8 << 20  # weights that one core reads in about half a millisecond
GRAIN_OPERATIONS = 1e8  # about a millisecond of one core


def useful_threads(parameters: int, value_bytes: int, tokens: int) -> int:
    """Returns the number of threads that a step over `tokens` tokens should use on a CPU.

    Every operator starts and joins its threads. With microseconds of work for each, a second thread gains nothing, and
    on a busy host every join waits for a thread that has no core: a decode step of a model of 2 million parameters took
    40 ms instead of 2 ms with two threads, beside two other busy processes.
    """
    by_bytes = parameters * value_bytes / GRAIN_BYTES
    by_operations = 2 * parameters * tokens / GRAIN_OPERATIONS
    return max(1, int(max(by_bytes, by_operations)))
