"""The benchmark of transfers moves every byte, over every kind of transport and through every codec."""

import asyncio

from benchmarks.transfer.__main__ import WAYS, measure, table

MEASURED_WAYS = ("tcp, sealed, fp8", "shm, int8", "pool", "nixl")
"""Each has a process, which takes two seconds of a processor to start."""


def test_a_tiny_run_has_every_row() -> None:
    run = measure(megabytes=2, frame=64 << 10, rounds=1, ways=MEASURED_WAYS)  # asserts that the bytes are right
    rows, own = asyncio.run(run)
    assert [row.name for row in rows][4:] == list(MEASURED_WAYS) and all(len(row.seconds) == 1 for row in rows)
    assert own >= 0 and len(list(table(rows, 2 << 20))) == 1 + len(rows)
    transports = {way.kv_transport for way in WAYS.values()}
    assert {WAYS[name].kv_transport for name in MEASURED_WAYS} == transports - {"ipc"}, "which is as TCP here"
