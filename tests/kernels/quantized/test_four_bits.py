"""The assembly that converts codes of 4 bits makes the values that they stand for, which the interpreter cannot run."""

import pytest
import torch

from kernels.quantized.four_bits import conversion
from kernels.quantized.packed import CODE_BITS, FP4_VALUES, CodeKind
from tests.kernels.quantized.assembly import executed


@pytest.mark.parametrize("kind", ["int4", "fp4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("plane", range(4))
def test_every_pair_of_codes_becomes_its_two_values(kind: CodeKind, plane: int, dtype: torch.dtype) -> None:
    """Whatever the other three places of both words have."""
    table = torch.tensor(FP4_VALUES if kind == "fp4" else range(-8, 8)).to(dtype)
    places = torch.randint(0, 16, (4096, 2, 4))
    pair = torch.cartesian_prod(torch.arange(16), torch.arange(16)).repeat(16, 1)
    places[:, :, plane] = pair
    halves = torch.zeros_like(places[:, :, 0])
    for place, bits in enumerate(CODE_BITS[kind]):
        for bit, target in enumerate(bits):
            halves |= (places[:, :, place] >> bit & 1) << target
    found = executed(conversion(kind, plane, dtype == torch.float16), halves[:, 0] | halves[:, 1] << 16, dtype)
    assert found.equal(table[pair])
