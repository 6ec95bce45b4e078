"""The benchmark of transfers moves every byte, over every way."""

import asyncio

from benchmarks.transfer.__main__ import WAYS, measure, table


def test_a_tiny_run_has_every_row() -> None:
    rows, own = asyncio.run(measure(megabytes=2, frame=64 << 10, rounds=1))  # asserts that the bytes are right
    assert [row.name for row in rows][4:] == list(WAYS) and all(len(row.seconds) == 1 for row in rows)
    assert own >= 0 and len(list(table(rows, 2 << 20))) == 1 + len(rows)
