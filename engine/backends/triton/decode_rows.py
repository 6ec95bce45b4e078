"""Which row of a decode step is whose: a sequence keeps its row, so that what the device holds there stays true."""

from collections.abc import Sequence


class DecodeRows:
    """Rows are counted from 0 without gaps: where a sequence leaves, a new one or the last one takes its row."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}  # of the sequences of the step before

    def of(self, sequences: Sequence[int]) -> list[int]:
        """The row of each sequence of a step. Who had one below their number has it still."""
        count = len(sequences)
        rows = {sequence: row for sequence in sequences if (row := self._rows.get(sequence, count)) < count}
        if len(rows) < count:
            free = iter(sorted({*range(count)} - {*rows.values()}))
            rows |= {sequence: next(free) for sequence in sequences if sequence not in rows}
        self._rows = rows
        return [rows[sequence] for sequence in sequences]
