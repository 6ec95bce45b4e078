"""Neighbouring numbers, of blocks or slots, as runs: what is adjacent in memory moves in one piece."""

from collections.abc import Iterator, Sequence


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of ascending neighbours."""
    first = last = None
    for number in numbers:
        if last is not None and number == last + 1:
            last = number
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = number
    if first is not None and last is not None:
        yield first, last
