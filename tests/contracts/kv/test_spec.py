"""The memory formula, by hand: batch x length x layers x 2 x KV heads x head size x bytes per value; windows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.kv.spec import KVGroup, KVSpec, kv_bytes


@pytest.mark.parametrize(
    ("batch", "tokens", "layers", "kv_heads", "head_dim", "value_bytes", "expected"),
    [
        (1, 1, 1, 1, 1, 1, 2),
        (1, 1, 32, 8, 128, 2, 128 << 10),  # Llama 3 8B in bf16: 128 KiB per token
        (4, 4096, 32, 32, 128, 2, 8 << 30),  # Llama 2 7B, four sequences of 4,096 tokens
        (3, 0, 32, 8, 128, 2, 0),
    ],
)
def test_the_formula(
    batch: int, tokens: int, layers: int, kv_heads: int, head_dim: int, value_bytes: int, expected: int
) -> None:
    assert kv_bytes(batch, tokens, layers, kv_heads, head_dim, value_bytes) == expected


@given(window=st.integers(0, 40), block_tokens=st.integers(1, 9), position=st.integers(0, 100))
def test_a_window_needs_the_blocks_of_the_tokens_that_a_query_sees(
    window: int, block_tokens: int, position: int
) -> None:
    group = KVGroup("window", (0,), block_tokens, 64, window=window)
    seen = [at for at in range(position + 1) if not window or at > position - window]
    assert group.first_needed(position) == seen[0] // block_tokens
    before = {at // block_tokens for at in seen if at < position}
    assert set(group.needed_blocks(position)) >= before
    assert len(group.needed_blocks(position)) <= len(before) + 1  # a window of one token sees itself only


def test_a_window_is_part_of_what_two_ends_agree_on() -> None:
    full, windowed = (KVSpec((KVGroup("full", (0,), 16, 64, window=window),), "", "") for window in (0, 32))
    assert full.fingerprint() != windowed.fingerprint() and full.content() != windowed.content()
