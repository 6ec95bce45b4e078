"""The gate against float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.silu_and_mul import CANDIDATES, reference, silu_and_mul
from kernels.tuning import Config
from tests.kernels.poison import poisoned


def assert_gated(found: Tensor, gate_up: Tensor) -> None:
    """Rounded once to its format. Before, in fp32 with unit u: exp(x) as a power of two is wrong by |x| u, for the
    rounding of x log2(e), and 2^-22, 4 u; sum, division (2 units in the last place, 4 u) and products by 8 u more."""
    exact = reference(gate_up.double())
    gate, up = gate_up.double().chunk(2, -1)
    unit = torch.finfo(torch.float32).eps / 2
    bound = torch.finfo(found.dtype).eps / 2 + (gate.abs() + 12) * unit
    least = torch.finfo(found.dtype).smallest_normal * torch.finfo(found.dtype).eps  # what is tiny has fewer bits
    lost = 1e-36 * up.abs()  # below -88 exp(-x) is infinite in fp32, and silu 0 instead of some -1e-37
    assert found.dtype == gate_up.dtype
    assert ((found.double() - exact).abs() <= bound * exact.abs() + least + lost).all()


@pytest.mark.parametrize("shape", [(1, 16), (3, 97), (2, 1300), (0, 8)])
def test_the_gate_is_that_of_float64(shape: tuple[int, int], device: torch.device, dtype: torch.dtype) -> None:
    gate_up = (torch.randn(shape[0], 2 * shape[1], device=device) * 4).to(dtype)
    with poisoned():
        found = silu_and_mul(gate_up)
    assert found.shape == shape
    assert_gated(found, gate_up)


@pytest.mark.parametrize("config", CANDIDATES, ids=str)
def test_every_candidate_computes_the_same(config: Config, device: torch.device) -> None:
    gate_up = torch.randn(2, 2 * 1100, device=device)
    assert_gated(silu_and_mul(gate_up, config=config), gate_up)


def test_large_gates_saturate(device: torch.device, dtype: torch.dtype) -> None:
    gate = torch.tensor([[0.0, -20.0, 20.0, -100.0, 100.0, -1000.0, 1000.0, -30000.0]], device=device)
    gate_up = torch.cat((gate, torch.ones_like(gate)), 1).to(dtype)
    with np.errstate(over="ignore"):  # the interpreter's exp tells of it
        found = silu_and_mul(gate_up)
    assert found.isfinite().all()
    assert_gated(found, gate_up)
