"""Numbers that packed weights stand for are made in place of them, to the digit."""

import pytest
import torch

from kernels.quantized.dequantize import CANDIDATE_CONFIGS, dequantize, reference
from kernels.quantized.packed import CodeKind, pack
from kernels.tuning import Config
from tests.kernels.poison import poisoned
from tests.kernels.quantized.weights import KINDS, drawn


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("inputs", "group"), [(200, 64), (70, 70)])
@pytest.mark.parametrize("offsets", [False, True])
def test_they_equal_the_reference(
    kind: CodeKind, inputs: int, group: int, offsets: bool, device: torch.device, dtype: torch.dtype
) -> None:
    """Compares to the bit but for an offset's sum, which fp32 rounds twice before the format does."""
    weight = pack([drawn(kind, 21, inputs, group, offsets=offsets)], device)
    with poisoned():
        found = dequantize(weight, dtype)
    expected = reference(weight, dtype)
    step = torch.finfo(dtype).eps * expected.abs().max() if offsets else torch.finfo(dtype).eps * expected.abs()
    assert found.dtype == dtype and ((found - expected).abs() <= step).all()


@pytest.mark.parametrize(("inputs", "group"), [(200, 64), (256, 128)])
def test_zeros_take_no_rounding(inputs: int, group: int, device: torch.device, dtype: torch.dtype) -> None:
    weight = pack([drawn("int4", 21, inputs, group, zeros=True)], device)
    assert weight.has_zeros and dequantize(weight, dtype).equal(reference(weight, dtype))


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_groups_that_end_within_a_run(kind: CodeKind, device: torch.device) -> None:
    weight = pack([drawn(kind, 9, 112, 48)], device)
    torch.testing.assert_close(dequantize(weight, torch.float32), reference(weight, torch.float32))


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS, ids=str)
def test_every_candidate_makes_the_same(config: Config, device: torch.device) -> None:
    weight = pack([drawn("int4", 70, 500, 128)], device)
    assert dequantize(weight, torch.float32, config=config).equal(dequantize(weight, torch.float32))
