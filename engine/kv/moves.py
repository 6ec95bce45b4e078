"""Block moves, which are in order, as batches whose order does not matter: each may read all before it writes any."""

from collections.abc import Iterable, Iterator

from engine.plan import BlockMove


def batches(moves: Iterable[BlockMove], most: int) -> Iterator[list[BlockMove]]:
    """Neighbours of one kind and group, at most `most` of them, with the effect of all moves one after the other.

    A batch ends before a move that reads what the batch writes, or writes it again. Slots of the host tier are not
    blocks of the pool: only a copy has its source where its target is.
    """
    assert most > 0
    batch: list[BlockMove] = []
    written: set[int] = set()
    for move in moves:
        if batch and (len(batch) == most or _ends(batch[0], written, move)):
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
