"""Gate and quantization in one launch give the bits of two."""

from typing import get_args

import pytest
import torch

from kernels.gate import Activation
from kernels.quantized.gate_rows import gate_rows, reference
from kernels.quantized.rows import RowFormat
from tests.kernels.poison import poisoned
from tests.kernels.quantized.test_norm_rows import same
from tests.kernels.quantized.test_rows import FORMS


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("width", [97, 300])
def test_the_bits_are_those_of_two_launches(
    form: RowFormat, width: int, device: torch.device, dtype: torch.dtype
) -> None:
    gate_up = torch.randn(3, 2 * width, device=device, dtype=dtype)
    for activation in get_args(Activation):
        with poisoned():
            found = gate_rows(gate_up, activation, form)
        assert same(found, reference(gate_up, activation, form)), activation


def test_a_row_that_is_not_finite_leaves_the_others(device: torch.device) -> None:
    gate_up = torch.randn(3, 80, device=device)
    plain = gate_rows(gate_up, "silu", FORMS[0])
    gate_up[1, 47] = float("inf")
    found = gate_rows(gate_up, "silu", FORMS[0])
    assert not found.scales[0, 1].isfinite() and found.scales[:, ::2].equal(plain.scales[:, ::2])
    assert found.values[::2].equal(plain.values[::2])
