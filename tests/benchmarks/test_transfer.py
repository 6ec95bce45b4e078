"""The benchmark of transfers moves every byte, over every way."""

import asyncio

import pytest

from benchmarks.transfer.__main__ import WAYS, kinds_table, measure, measure_kinds, table


@pytest.mark.timeout(180)
def test_a_tiny_run_has_every_row() -> None:
    rows, own = asyncio.run(measure(megabytes=2, frame=64 << 10, rounds=1))  # asserts that the bytes are right
    assert [row.name for row in rows][4:] == list(WAYS) and all(len(row.seconds) == 1 for row in rows)
    assert own >= 0 and len(list(table(rows, 2 << 20))) == 2 + len(rows)


@pytest.mark.timeout(120)
def test_a_latent_vector_and_its_key_are_all_that_goes_over_the_wire() -> None:
    kinds = asyncio.run(measure_kinds(tokens=64, rounds=1))
    assert kinds["latent"].token_bytes == kinds["latent"].wire_bytes == 16 * (512 + 64) * 2
    assert kinds["multi-head"].token_bytes == kinds["multi-head"].wire_bytes == 16 * 2 * 32 * 128 * 2
    assert kinds["grouped-query"].wire_bytes == kinds["multi-head"].wire_bytes / 4
    assert "| latent | 18,432 | 18,432 | 7.0% |" in "\n".join(kinds_table(kinds))
