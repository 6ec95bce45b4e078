"""Attention to latent vectors against its definition in fp64, in both forms, for odd sizes and ragged batches."""

import ctypes
import math
from collections.abc import Callable

import pytest
import torch
from msgspec import structs
from torch import Tensor

from contracts.kv.spec import blocks_for
from contracts.messages.sampling import Sampling
from engine.backends.native.attention import NativeAttention, unsupported
from engine.backends.native.library import load
from engine.backends.native.linears import NativeLinears
from engine.backends.reference.attention import latent_attention
from engine.backends.reference.attention.paged_attention import ReferenceAttention
from engine.backends.reference.linear import ReferenceLinears
from engine.model.attention import Attention, AttentionStep
from engine.model.batch import build_batch
from engine.model.config import DenseMLP, LatentAttention, LayerConfig
from engine.model.layers.latent import expands
from engine.model.rope import Rope
from engine.plan import StepPlan, Work
from tests.engine.backends.reference.attention.test_paged_attention import SHAPES
from tests.engine.configs import dense as dense_config

CPU = torch.device("cpu")
LONG = {"long": [(1500, 1), (700, 3), (130, 1)], "whole and parts": [(0, 257), (128, 7), (63, 63), (256, 1)]}
SIZES = {  # heads, latent, rope, nope, value
    "one head": (1, 24, 6, 10, 14),
    "17 heads": (17, 24, 6, 10, 14),
    "135M-like": (9, 64, 16, 48, 64),
    "V3-like": (40, 512, 64, 128, 128),
}
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 3 * 2**-9 + 2e-4}
"""Of the largest |found - expected| / sum of weight x |value|: see tests/engine/backends/native/test_attention.py.

The error of a score of n products is up to n x 2^-24 of the sum of |q k| scale, which is about the root of n here, and
moves a result by twice that; n is 64 there."""


def attention_of(sizes: str) -> LatentAttention:
    heads, latent, rope, nope, value = SIZES[sizes]
    return LatentAttention(
        heads=heads,
        query_rank=0,
        latent_rank=latent,
        rope_dim=rope,
        nope_dim=nope,
        value_dim=value,
        scale=(latent + rope) ** -0.5,  # so that scores of random vectors are about 1
        rope=Rope(dim=rope),
    )


def begun(
    make: Callable[[list[Tensor], list[LatentAttention]], Attention[AttentionStep]],
    attention: LatentAttention,
    shape: list[tuple[int, int]],
    block: int,
    dtype: torch.dtype,
) -> tuple[AttentionStep, list[Tensor], Tensor]:
    """A step whose second layer has stored all; each work's vectors in fp32, and the layer. Unwritten slots are NaN."""
    generator = torch.Generator().manual_seed(0)
    width = attention.latent_rank + attention.rope_dim
    totals = [start + count for start, count in shape]
    order = (torch.randperm(sum(blocks_for(total, block) for total in totals), generator=generator) + 1).tolist()
    layers = list(torch.full((2, len(order) + 1, 1, block, width), math.nan, dtype=dtype))
    for layer in layers:
        layer[0] = 0
    works, contents = [], []
    for number, (start, count) in enumerate(shape):
        own, order = order[: blocks_for(start + count, block)], order[blocks_for(start + count, block) :]
        works.append(Work(number, start, [0] * count, (own,), Sampling(seed=0)))
        contents.append(torch.randn(start + count, width, generator=generator).to(dtype))
        for position in range(start):
            layers[1][own[position // block], 0, position % block] = contents[-1][position]
        if start % block:  # as it was when the sequence entered the block
            layers[1][own[start // block], 0, start % block :] = 0
    step = make(layers, [attention] * 2).begin(build_batch(StepPlan(0, works), block, CPU, None))
    new = torch.cat([content[start:] for content, (start, _) in zip(contents, shape, strict=True)])
    behind = torch.cat(
        (torch.full((len(new), 5), math.nan, dtype=dtype), new), 1
    )  # as the model has them: with a stride
    step.store(1, behind[:, 5:].unsqueeze(1))
    assert layers[0][1:].isnan().all(), "another layer was written"
    return step, [content.float() for content in contents], layers[1]


def error_of(
    found: Tensor, queries: Tensor, contents: list[Tensor], shape: list[tuple[int, int]], attention: LatentAttention
) -> float:
    """The largest error of absorbed attention from `queries`, as `LIMITS` has it."""
    error, begin = 0.0, 0
    for content, (start, count) in zip(contents, shape, strict=True):
        rows = slice(begin, begin + count)
        weights = weights_of(queries[rows].double(), content.double().unsqueeze(1), start, attention.scale)
        values = content[:, : attention.latent_rank].double()
        expected, scale = (torch.einsum("hqk,kl->qhl", weights, each) for each in (values, values.abs()))
        error = max(error, float(((found[rows].double() - expected).abs() / scale).nan_to_num(math.inf).max()))
        begin += count
    return error


def weights_of(queries: Tensor, keys: Tensor, start: int, scale: float) -> Tensor:
    """The softmax `[heads, queries, keys]` of the definition; `keys` are `[keys, heads or 1, width]`."""
    scores = torch.einsum("qhd,khd->hqk", queries, keys.expand(-1, queries.shape[1], -1)) * scale
    future = torch.arange(len(keys)) > start + torch.arange(len(queries))[:, None]
    return scores.masked_fill(future, -math.inf).softmax(-1)


@pytest.fixture(scope="module")
def native() -> ctypes.CDLL:
    return load()


@pytest.mark.parametrize("shape", [*SHAPES, *LONG])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", LIMITS, ids=["fp32", "bf16"])
@pytest.mark.parametrize("block", [8, 64])
def test_native_attention_equals_the_definition(
    native: ctypes.CDLL, shape: str, sizes: str, dtype: torch.dtype, block: int
) -> None:
    works, attention = {**SHAPES, **LONG}[shape], attention_of(sizes)
    step, contents, _ = begun(lambda *given: NativeAttention(native, *given), attention, works, block, dtype)
    queries = random_queries(works, attention, attention.latent_rank + attention.rope_dim, dtype)
    found = step.attend(1, queries)
    limit = LIMITS[dtype] + 2 * queries.shape[2] ** 1.5 * 2**-24
    assert found.dtype == dtype and error_of(found, queries.float(), contents, works, attention) < limit


def random_queries(shape: list[tuple[int, int]], attention: LatentAttention, width: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(sum(count for _, count in shape), attention.heads, width, generator=generator).to(dtype)


@pytest.mark.parametrize("shape", [*SHAPES, *LONG])
@pytest.mark.parametrize("sizes", ["17 heads", "135M-like"])
@pytest.mark.parametrize("bounded", [False, True], ids=["together", "alone"])
def test_pytorchs_operators_equal_the_definition(
    shape: str, sizes: str, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bounded:
        monkeypatch.setattr(latent_attention, "MAX_GATHERED_BYTES", 1)
    works, attention = {**SHAPES, **LONG}[shape], attention_of(sizes)
    step, contents, _ = begun(ReferenceAttention, attention, works, 8, torch.float32)
    queries = random_queries(works, attention, attention.latent_rank + attention.rope_dim, torch.float32)
    assert error_of(step.attend(1, queries), queries, contents, works, attention) < LIMITS[torch.float32]


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("bounded", [False, True], ids=["all heads", "a head at a time"])
def test_both_forms_equal_the_definition(
    native: ctypes.CDLL, backend: str, sizes: str, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values are built in fp64; works are such that each form is the cheaper one for some."""
    if bounded:
        monkeypatch.setattr(latent_attention, "MAX_EXPANDED_BYTES", 1)
    works, attention, generator = LONG["whole and parts"], attention_of(sizes), torch.Generator().manual_seed(2)
    assert {expands(attention, count, start + count) for start, count in works} == {False, True}
    reference, packed = ReferenceLinears(CPU, torch.float32), NativeLinears(native, torch.float32)
    make_products = reference.latent if backend == "torch" else packed.latent
    heads, latent = attention.heads, attention.latent_rank
    keys = torch.randn(heads, attention.nope_dim, latent, generator=generator) / latent**0.5
    values = torch.randn(heads, attention.value_dim, latent, generator=generator) / latent**0.5
    make = ReferenceAttention if backend == "torch" else (lambda *given: NativeAttention(native, *given))
    step, contents, _ = begun(make, attention, works, 16, torch.float32)
    queries = random_queries(works, attention, attention.nope_dim + attention.rope_dim, torch.float32)
    found = step.attend_latent(1, queries, make_products(keys, values))
    begin = 0
    for content, (start, count) in zip(contents, works, strict=True):
        rows, latents = slice(begin, begin + count), content[:, :latent].double()
        own = torch.einsum("kl,hnl->khn", latents, keys.double())
        shared = content[:, None, latent:].double().expand(-1, heads, -1)
        weights = weights_of(queries[rows].double(), torch.cat((own, shared), -1), start, attention.scale)
        expected = torch.einsum("hqk,kl,hvl->qhv", weights, latents, values.double())
        torch.testing.assert_close(found[rows].double(), expected, rtol=0, atol=2e-5)
        begin += count


def test_which_form_is_cheaper() -> None:
    """DeepSeek V3's: a decode is absorbed, a prompt is expanded, and a chunk from about 170 queries on."""
    attention = attention_of("V3-like")
    assert not expands(attention, 1, 2) and not expands(attention, 1, 100_000)
    assert expands(attention, 100, 100) and expands(attention, 8192, 8192)
    assert not expands(attention, 170, 100_000) and expands(attention, 172, 100_000)


def test_absorbed_and_expanded_cost_what_they_count() -> None:
    """The rule is the difference of two sums of products, counted one by one."""
    for sizes in SIZES:
        attention = attention_of(sizes)
        _, latent, rope, nope, value = SIZES[sizes]
        for queries, keys in [(1, 1), (1, 9), (5, 9), (9, 9), (40, 400), (170, 1000), (400, 400)]:
            pairs = sum(range(keys - queries + 1, keys + 1))
            absorbed = pairs * (2 * latent + rope) + queries * latent * (nope + value)
            expanded = pairs * (nope + rope + value) + keys * latent * (nope + value)
            assert expands(attention, queries, keys) == (expanded < absorbed)


def test_vectors_that_the_native_operators_do_not_know_are_named() -> None:
    wide = structs.replace(attention_of("V3-like"), latent_rank=514)
    odd = structs.replace(attention_of("one head"), latent_rank=25)
    for attention, width in ((wide, 578), (odd, 31)):
        config = structs.replace(dense_config(), layers=(LayerConfig(attention, DenseMLP(intermediate=8)),))
        words = f"even latent vectors with their keys up to 576 are supported, not {width}"
        assert unsupported(config, torch.float32, 16) == words
