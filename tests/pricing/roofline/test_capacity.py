"""Well-known figures of large models on one kind of GPU."""

import pytest

from pricing.roofline.capacity import Capacity, dollars_per_million, gpus_needed
from pricing.roofline.gpu_rates import GPU_RATES
from pricing.roofline.gpu_step_time import ModelShape

H100 = GPU_RATES["H100"]
LLAMA_70B = ModelShape(70e9, 140e9, 80 * 2 * 8 * 128 * 2)
"""80 layers, 8 KV heads of 128 values, bf16."""


def test_70_billion_weights_take_42_ms_to_read_and_a_token_0_14_ms_to_compute() -> None:
    eight = Capacity(LLAMA_70B, H100, 0.9, gpus=1).decode(1, 1)
    assert eight.floor_seconds == pytest.approx(41.8e-3, rel=0.01)
    assert 2 * LLAMA_70B.parameters / H100.multiply == pytest.approx(0.14e-3, rel=0.02)


def test_they_do_not_fit_into_one_gpu_of_80_gb() -> None:
    assert not Capacity(LLAMA_70B, H100, 0.9).fits(1)
    # Of 288 GB of four, steps take 8.6: 139 GB for KV are 425,445 tokens of 327,680 bytes.
    assert Capacity(LLAMA_70B, H100, 0.9, gpus=4).pool_tokens == 425_445
    assert gpus_needed(LLAMA_70B, H100, 0.9, 8_192) == 4 and gpus_needed(LLAMA_70B, H100, 0.9, 500_000) == 8
    assert gpus_needed(ModelShape(1e13, 2e13, 1.0), H100, 0.9, 1) is None


def test_a_batch_uses_the_products_that_a_sequence_leaves() -> None:
    copy = Capacity(LLAMA_70B, H100, 0.9, gpus=2)
    alone, many = copy.decode(1, 128), copy.decode(32, 128)
    assert many.multiply_share == pytest.approx(32 * alone.multiply_share, rel=0.1)
    assert many.tokens_per_s > 28 * alone.tokens_per_s and many.seconds >= many.floor_seconds


def test_three_dollars_an_hour_at_10_000_tokens_a_second_are_8_cents_a_million() -> None:
    assert dollars_per_million(3.0, 10_000) == pytest.approx(0.0833, abs=1e-4)
