"""A block comes back from the host tier where that is faster than its computation."""

import pytest

from pricing.rates import MOVE_SECONDS, StartRates, worth_bringing_back

KiB, MiB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("blocks", "block_bytes", "block_tokens", "prompt", "host", "worth"),
    [
        (10, 2 * MiB, 16, 20_000.0, 20e9, True),  # 8B on a GPU over PCIe: 1.1 ms for 8 ms
        (10, 2 * MiB, 16, 20_000.0, 1e9, False),  # … over a disk: 21 ms
        (1, 48 * KiB, 16, 200_000.0, 2e9, False),  # a tiny model computes a block in less than a move's own time
        (100, 48 * KiB, 16, 200_000.0, 2e9, True),  # … which many blocks share
        (1, 360 * KiB, 16, 1_000.0, 4e9, True),  # 135M on a CPU
        (0, MiB, 16, 100.0, 1e9, False),
        (5, MiB, 16, 100.0, 0.0, False),  # no tier
        (5, MiB, 16, 0.0, 1e9, True),  # not measured
        (5, MiB, 16, 0.0, 0.0, False),
    ],
)
def test_blocks_come_back_where_that_is_faster_than_computing(
    blocks: int, block_bytes: int, block_tokens: int, prompt: float, host: float, worth: bool
) -> None:
    assert worth_bringing_back(blocks, block_bytes, block_tokens, StartRates(prompt, host)) is worth


def test_the_limit_is_where_both_take_the_same_time() -> None:
    """8 blocks of 1 MB at 1 GB/s take 8 ms and what a move takes; so do 128 tokens at this rate."""
    rate = 128 / (8e-3 + MOVE_SECONDS)
    assert worth_bringing_back(8, 1_000_000, 16, StartRates(rate * 0.999, 1e9))
    assert not worth_bringing_back(8, 1_000_000, 16, StartRates(rate * 1.001, 1e9))
