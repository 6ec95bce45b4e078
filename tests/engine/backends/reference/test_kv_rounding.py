"""What a quantized pool keeps: the nearest number that a byte has, by a scale of each token's own, to the bit."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from engine.backends.reference.attention.kv_rows import QuantizedKVRows
from engine.backends.reference.kv_rounding import dequantize, quantize, rounded
from engine.model.kv_layout import KVForm, QuantizedLayer
from tests.rounded_cache import rounded as rounded_by_definition

FORMS: tuple[KVForm, ...] = ("int8", "fp8")
E4M3 = sorted(
    {
        sign * (Fraction(m, 8) if not e else 1 + Fraction(m, 8)) * Fraction(2) ** (max(e, 1) - 7)
        for sign in (1, -1)
        for e in range(16)
        for m in range(8)
        if (e, m) != (15, 7)
    }
)
"""All numbers of the format, by its definition."""
NUMBERS = {"int8": [Fraction(q) for q in range(-127, 128)], "fp8": E4M3}
FLOATS = st.floats(-(2.0**40), 2.0**40, width=32)


@pytest.mark.parametrize("form", FORMS)
@given(vector=st.lists(FLOATS, min_size=1, max_size=9))
@example(vector=[127.0, 0.5, 1.5, 2.5, -0.5, -126.5])
@example(vector=[448.0, 0.0009765625, 0.0029296875, 432.0, -17.0, 19.0])
@example(vector=[0.0, -0.0])
@example(vector=[1e-45, -1e-38, 2.0**-126])
def test_each_number_becomes_the_nearest_that_there_is(form: KVForm, vector: list[float]) -> None:
    values, scales = quantize(torch.tensor([vector]), form, (len(vector),))
    scale = Fraction(scales.item())
    highest = max(map(abs, vector))
    largest = 127 if form == "int8" else 448
    exact = max(Fraction(highest) / largest, Fraction(2) ** -126)
    assert abs(scale - exact) <= exact / 256, "a scale is the nearest bf16 number"
    kept = dequantize(values, scales, form, (len(vector),), torch.float32)[0].tolist()
    for x, found in zip(vector, kept, strict=True):
        nearest = min(abs(Fraction(x) - scale * number) for number in NUMBERS[form])
        off = abs(Fraction(x) - Fraction(found))
        assert off <= nearest + abs(Fraction(x)) * Fraction(2) ** -22, "but for fp32's rounding of x / scale"
        assert Fraction(found) / scale in NUMBERS[form], "a product of the two is exact in fp32"


@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_definition_to_the_bit_and_ties_go_to_even(form: KVForm) -> None:
    vectors = torch.randn(500, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-9, 9, 500)[:, None]
    assert torch.equal(rounded(vectors, form, (64,)), rounded_by_definition(vectors, form))
    ties = torch.tensor([[127.0, 0.5, 1.5, 2.5, -2.5]]) if form == "int8" else torch.tensor([[448.0, 17, 19, 21, -21]])
    even = [127.0, 0, 2, 2, -2] if form == "int8" else [448.0, 16, 20, 20, -20]
    assert rounded(ties, form, (5,))[0].tolist() == even


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_visible(form: KVForm, strange: float) -> None:
    """Looks for it in its own part only: the rotated key behind a latent vector is a part of its own."""
    vectors = torch.ones(2, 6)
    vectors[0, 4] = strange
    kept = rounded(vectors, form, (4, 2))
    assert kept[0, 4:].isnan().all() and kept[0, :4].isfinite().all() and kept[1].isfinite().all()


@pytest.mark.parametrize("form", FORMS)
def test_a_part_that_is_sixteen_times_as_large_costs_the_other_nothing(form: KVForm) -> None:
    latents, keys = torch.randn(2, 100, 32, generator=torch.Generator().manual_seed(1))
    together = torch.cat((latents, 16 * keys), 1)
    apart = rounded(together, form, (32, 32))
    assert torch.equal(apart[:, :32], rounded(latents, form, (32,)))
    assert torch.equal(apart[:, 32:], rounded(16 * keys, form, (32,)))


def random_layer(form: KVForm, parts: tuple[int, ...]) -> QuantizedLayer:
    memory = torch.randint(256, (5, 4, 8 * (sum(parts) + 2 * len(parts))), dtype=torch.uint8)
    return QuantizedLayer(form, memory, 8, parts)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parts", [(6,), (4, 2)])
def test_a_token_changes_its_own_bytes_only(form: KVForm, parts: tuple[int, ...]) -> None:
    """Whatever comes behind a token in its block: its values and its scales stay as they were stored."""
    torch.manual_seed(0)
    layer = random_layer(form, parts)
    rows = QuantizedKVRows(layer, torch.float32)
    places, before = torch.tensor([0, 13, 8 * 4 * 4 + 3, 8 * 4 * 5 - 1]), layer.memory.clone()
    stored = torch.randn(4, 6)
    rows.put(places, stored)
    at, offset = places // 8, places % 8
    found = rows.take(at).view(4, 8, 6)[torch.arange(4), offset]
    assert torch.equal(found, rounded(stored, form, parts))

    def untouched(memory: Tensor) -> Tensor:
        view = QuantizedLayer(form, memory.clone(), 8, parts)
        view.values.flatten(0, 1)[at, offset] = 0
        view.scales.flatten(0, 1)[at, :, offset] = 0
        return view.memory

    assert torch.equal(untouched(layer.memory), untouched(before))
    assert not torch.equal(layer.memory, before)
