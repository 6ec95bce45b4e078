"""The memory formula, by hand: batch x length x layers x 2 x KV heads x head size x bytes per value."""

import pytest

from core.kvspec import kv_bytes


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
