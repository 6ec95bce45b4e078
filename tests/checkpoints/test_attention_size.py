"""KV of a token by a config alone, checked with figures that model cards and papers give."""

import pytest

from checkpoints.attention_size import AttentionSize, attention_size

HEADS = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}


@pytest.mark.parametrize(
    ("fields", "kind", "values"),
    [
        ({}, "MHA", 8192),
        ({"num_key_value_heads": 8}, "GQA", 2048),
        ({"num_key_value_heads": 1}, "MQA", 256),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}, "MLA", 576),
    ],
)
def test_heads_that_share_keys_store_less(fields: dict[str, int], kind: str, values: float) -> None:
    found = attention_size({**HEADS, **fields})
    assert (found.kind, found.layer_values) == (kind, values)


@pytest.mark.parametrize(
    ("fields", "window_layers"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, 32),
        ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, 0),
        ({"model_type": "gemma2", "sliding_window": 4096}, 16),
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 16}, 16),
    ],
)
def test_layers_with_a_window(fields: dict[str, object], window_layers: int) -> None:
    assert attention_size({**HEADS, **fields}).window_layers == window_layers


def test_windows_bound_what_a_long_text_stores() -> None:
    half = AttentionSize(layers=32, window=1024, window_layers=16)
    assert half.layer_tokens(512) == 512
    assert half.layer_tokens(4096) == (4096 + 1024) / 2


def test_heads_that_a_width_divides() -> None:
    grouped = attention_size({**HEADS, "num_key_value_heads": 2})
    assert grouped.divides_among(8) and not attention_size({**HEADS, "num_attention_heads": 12}).divides_among(8)


def test_layers_of_another_kind_are_named() -> None:
    assert attention_size({**HEADS, "layer_types": ["linear_attention"] * 32}).other_kinds == ("linear_attention",)
