"""The gate against float64, for each activation."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from kernels.gate import CANDIDATE_CONFIGS, Activation, gate, reference
from kernels.tuning import Config
from tests.kernels.poison import poisoned

ACTIVATIONS = get_args(Activation)


def assert_gated(found: Tensor, gate_up: Tensor, activation: Activation) -> None:
    """Rounded once to its format. Before, in fp32 with unit u: exp(z) as a power of two is wrong by |z| u, for the
    rounding of z log2(e), and 2^-22, 4 u; z itself by 1 u for a factor, 6 u for a polynomial of positive terms; sums,
    division (2 units in the last place, 4 u) and products by 9 u more."""
    exact = reference(gate_up.double(), activation)
    first, second = gate_up.double().chunk(2, -1)
    power = {
        "silu": first.abs(),
        "gelu_tanh": 7 * 1.6 * (first.abs() + 0.0448 * first.abs() ** 3),
        "clamped_swiglu": 2 * 1.71 * first.abs(),
    }[activation]
    unit = torch.finfo(torch.float32).eps / 2
    bound = torch.finfo(found.dtype).eps / 2 + (power + 13) * unit
    least = torch.finfo(found.dtype).smallest_normal * torch.finfo(found.dtype).eps  # what is tiny has fewer bits
    lost = 1e-36 * (second.abs() + 1)  # powers below the least normal number of fp32, which a device makes 0
    lost += 2**-52 * (first * second).abs()  # the reference's tanh ends at -1
    assert found.dtype == gate_up.dtype
    assert ((found.double() - exact).abs() <= bound * exact.abs() + least + lost).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1, 16), (3, 97), (2, 1300), (0, 8)])
def test_the_gate_is_that_of_float64(
    shape: tuple[int, int], activation: Activation, device: torch.device, dtype: torch.dtype
) -> None:
    gate_up = (torch.randn(shape[0], 2 * shape[1], device=device) * 4).to(dtype)
    with poisoned():
        found = gate(gate_up, activation)
    assert found.shape == shape
    assert_gated(found, gate_up, activation)


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS, ids=str)
def test_every_candidate_computes_the_same(config: Config, device: torch.device) -> None:
    gate_up = torch.randn(2, 2 * 1100, device=device)
    assert_gated(gate(gate_up, "silu", config=config), gate_up, "silu")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_large_gates_saturate(activation: Activation, device: torch.device, dtype: torch.dtype) -> None:
    first = torch.tensor([[0.0, -20.0, 20.0, -100.0, 100.0, -1000.0, 1000.0, -30000.0]], device=device)
    gate_up = torch.cat((first, torch.ones_like(first)), 1).to(dtype)
    found = gate(gate_up, activation)
    assert found.isfinite().all()
    assert_gated(found, gate_up, activation)


def test_clamps_are_of_either_half_and_leave_what_is_no_number(device: torch.device) -> None:
    first = torch.tensor([[9.0, 2.0, 2.0, torch.nan, 2.0]], device=device)
    second = torch.tensor([[1.0, 9.0, -9.0, 1.0, torch.nan]], device=device)
    found = gate(torch.cat((first, second), 1), "clamped_swiglu")
    within = torch.tensor([[7.0, 2.0, 2.0, 1.0, 7.0, -7.0]], device=device)
    assert_gated(found[:, :3].contiguous(), within, "clamped_swiglu")
    assert found[0, 3:].isnan().all()
