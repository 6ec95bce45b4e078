"""The assembly that converts codes of 4 bits makes the values that they stand for, which the interpreter cannot run."""

import pytest
import torch

from kernels.quantized.four_bits import BF16_TERM, FP16_TERM, conversion
from kernels.quantized.packed import CODE_BITS, FP4_VALUES, CodeKind
from tests.kernels.quantized.assembly import executed


@pytest.mark.parametrize("kind", ["int4", "fp4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("plane", range(4))
def test_every_pair_of_codes_becomes_its_two_values(kind: CodeKind, plane: int, dtype: torch.dtype) -> None:
    """Whatever the other three places of both words have, and whichever codes of int4 stand for 0."""
    table = torch.tensor(FP4_VALUES if kind == "fp4" else range(16)).to(dtype)
    places = torch.randint(0, 16, (4096, 2, 4))
    pair = torch.cartesian_prod(torch.arange(16), torch.arange(16)).repeat(16, 1)
    places[:, :, plane] = pair
    halves = torch.zeros_like(places[:, :, 0])
    for place, bits in enumerate(CODE_BITS[kind]):
        for bit, target in enumerate(bits):
            halves |= (places[:, :, place] >> bit & 1) << target
    zeros = torch.randint(16, pair.shape) if kind == "int4" else torch.zeros_like(pair)
    terms = zeros | (FP16_TERM if dtype == torch.float16 else BF16_TERM).value & 0xFFFF
    words, second = (each[:, 0] | each[:, 1] << 16 for each in (halves, terms))
    found = executed(conversion(kind, plane, dtype == torch.float16, zeros=kind == "int4"), words, dtype, second)
    assert found.equal(table[pair] - zeros)
    fixed = executed(conversion(kind, plane, dtype == torch.float16), words, dtype)
    assert fixed.equal(table[pair] - 8 * (kind == "int4"))
