"""The floor's arithmetic, by hand: a model of two layers on a machine of round figures."""

from dataclasses import replace

import pytest
import torch
from msgspec.structs import replace as replace_fields

from benchmarks.limits.floor import Mixture, Timing, Work, floor, work_of
from benchmarks.limits.machine import Machine
from benchmarks.limits.workloads import Workload
from contracts.kinds import Quantization
from engine.model.config import LatentAttention, LayerConfig
from engine.model.rope import Rope
from tests.engine.configs import dense

WORK = Work(every=80, sampled=20, width=2, token_bytes=10)
EXPERTS = Work(every=80, sampled=20, width=2, token_bytes=10, mixture=Mixture(layers=3, experts=4, used=2, values=8))


def machine(read: float, multiply: float) -> Machine:
    return Machine("by hand", 1, read, multiply)


def test_sizes_of_a_model() -> None:
    model = dense(2, heads=4, kv_heads=2, head_dim=2, hidden=8, intermediate=12, vocabulary=100)
    # Of a layer: queries 8 x 8, output 8 x 8, keys and values 2 x 8 x 4, three matrices of 8 x 12.
    assert work_of(model, torch.bfloat16) == Work(
        every=2 * 64 + 1 * (64 + 64 + 288),
        sampled=64 + 64 + 288,
        width=2,
        token_bytes=2 * 2 * 2 * 2 * 2,
        head=800,
        head_width=2,
    )


@pytest.mark.parametrize(("query_rank", "queries"), [(0, 8 * 2 * 5), (6, 8 * 6 + 6 * 2 * 5)])
def test_sizes_of_latent_attention(query_rank: int, queries: int) -> None:
    """A step reads the weights of each head's keys and values once, as the absorbed form multiplies them."""
    attention = LatentAttention(
        heads=2, query_rank=query_rank, latent_rank=7, rope_dim=2, nope_dim=3, value_dim=4, scale=1.0, rope=Rope(dim=2)
    )
    plain = dense(3, heads=2, kv_heads=1, head_dim=4, hidden=8, intermediate=12, vocabulary=100)
    model = replace_fields(plain, layers=tuple(LayerConfig(attention, layer.mlp) for layer in plain.layers))
    others = queries + 2 * 3 * 7 + 2 * 7 * 4 + 2 * 4 * 8 + 3 * 8 * 12
    assert work_of(model, torch.bfloat16) == Work(
        every=3 * 8 * 9 + 2 * others, sampled=others, width=2, token_bytes=3 * 9 * 2, head=800, head_width=2
    )


@pytest.mark.parametrize(("quantization", "width", "head"), [("int8", 1, 1), ("fp8", 1, 1), ("int4", 4.5 / 8, 1)])
def test_quantized_weights_are_read_as_they_lie(quantization: Quantization, width: float, head: float) -> None:
    """Counts for int4 that 32 values share a scale of 16 bits, and the head has 8 bits; KV is as it was."""
    model = dense(2, heads=4, kv_heads=2, head_dim=2, hidden=8, intermediate=12, vocabulary=100)
    plain, work = work_of(model, torch.bfloat16), work_of(model, torch.bfloat16, quantization)
    assert work == replace(plain, width=width, head_width=head)
    assert work.bytes == (plain.bytes / 2 - 800) * width + 800 * head
    assert work.operations(5, 3) == plain.operations(5, 3)


def test_a_step_reads_the_experts_that_its_tokens_meet() -> None:
    assert EXPERTS.bytes == 2 * (100 + 3 * 4 * 8)
    assert EXPERTS.read(1, 1) == 2 * (100 + 3 * 2 * 8)
    assert EXPERTS.read(2, 1) == 2 * (100 + (2 * 3 + 2) * 8)  # half of the experts, and half of the rest
    assert EXPERTS.read(1000, 1000) == EXPERTS.bytes
    assert EXPERTS.operations(5, 3) == 2 * (5 * (80 + 2 * 16) + 3 * (20 + 16))
    assert floor(Workload(1, 2, 2), machine(1.0, 1e12), EXPERTS, 512) == Timing(328.0, 328.0 + 296.0 + 30.0)


def test_one_request_costs_reading() -> None:
    # Three steps read 200 bytes; the second and third also KV of 5 and 6 tokens: 50 and 60 bytes.
    assert floor(Workload(1, 4, 3), machine(100.0, 1e12), WORK, 512) == Timing(2.0, 2.0 + 2.5 + 2.6)


def test_prompts_are_read_for_once_per_chunk() -> None:
    assert floor(Workload(3, 4, 1), machine(100.0, 1e12), WORK, 5) == Timing(6.0, 6.0)  # 12 tokens, 5 at a time


def test_many_requests_cost_multiplying() -> None:
    # 10 x 4 prompt tokens: 2 x (40 x 80 + 10 x 20) = 6800 operations; a step of 10 rows: 2 x 10 x 100 = 2000.
    assert floor(Workload(10, 4, 2), machine(1e12, 1000.0), WORK, 512) == Timing(6.8, 6.8 + 2.0)
