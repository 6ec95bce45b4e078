"""The assembly that converts codes of 8 bits makes the values that they stand for, which the interpreter cannot run."""

import pytest
import torch

from kernels.quantized.steps import fp8_conversion
from tests.kernels.quantized.assembly import executed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_pair_of_fp8_codes_becomes_its_two_values(dtype: torch.dtype) -> None:
    """But for the code of NaN, whose scale is NaN."""
    codes = torch.cartesian_prod(torch.arange(256), torch.arange(256))
    codes[codes & 127 == 127] = 0
    found = executed(fp8_conversion(dtype == torch.float16), codes[:, 0] | codes[:, 1] << 8, dtype)
    assert found.equal(codes.to(torch.uint8).view(torch.float8_e4m3fn).to(dtype))
