"""Batches block moves: moves whose order does not matter, with runs of neighbours in memory."""

from collections.abc import Iterable, Iterator, Sequence

from engine.plan import BlockMove


def batches(moves: Iterable[BlockMove], max_moves: int) -> Iterator[list[BlockMove]]:
    """Cuts ordered moves into batches that may read all blocks before they write any.

    A batch has at most `max_moves` consecutive moves of one kind and group. It ends before a move that reads or
    overwrites a target of the batch, so its effect equals that of its moves one after the other. Slots of the host tier
    are not blocks of the pool, so only copies have source and target in the same memory.
    """
    assert max_moves > 0
    batch: list[BlockMove] = []
    written: set[int] = set()
    for move in moves:
        if batch and (len(batch) == max_moves or _ends(batch[0], written, move)):
            yield batch
            batch, written = [], set()
        batch.append(move)
        written.add(move.target)
    if batch:
        yield batch


def _ends(first: BlockMove, written: set[int], move: BlockMove) -> bool:
    if (move.kind, move.group) != (first.kind, first.group) or move.target in written:
        return True
    return move.kind == "copy" and move.source in written


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields (first, last) of each run of ascending neighbours among block or slot numbers, in their order."""
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
