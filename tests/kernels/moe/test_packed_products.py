"""Experts with packed weights give what those of the same numbers give, whatever is chosen, by any kernel."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from kernels.device import assumed
from kernels.gate import Activation
from kernels.moe.expert_products import Expert
from kernels.moe.experts import experts
from kernels.moe.packed_products import CANDIDATE_CONFIGS, PackedExpert, _default
from kernels.quantized.packed import CodeKind, pack, reference
from kernels.tuning import Config
from tests.kernels.moe.test_experts import Problem
from tests.kernels.moe.test_experts import drawn as chosen_of
from tests.kernels.poison import poisoned
from tests.kernels.quantized.weights import KINDS, drawn

SMALL = Config({"TILE": 16, "RUNS": 1, "GROUP": 2}, warps=4, stages=2)


def product(
    kind: CodeKind,
    count: int,
    outputs: int,
    inputs: int,
    group: int,
    device: torch.device,
    offsets: bool,
    bias: bool,
    zeros: bool = False,
) -> tuple[PackedExpert, Expert]:
    """Returns packed weights of all experts, and the numbers that they stand for in fp64."""
    each = [pack([drawn(kind, outputs, inputs, group, offsets=offsets, zeros=zeros)], device) for _ in range(count)]
    given = torch.randn(count, outputs, device=device) if bias else None
    numbers = torch.stack([reference(weight) for weight in each])
    shifts = [weight.offsets for weight in each if weight.offsets is not None]
    packed = replace(
        each[0],
        codes=torch.stack([weight.codes for weight in each]),
        scales=torch.stack([weight.scales for weight in each]),
        offsets=torch.stack(shifts) if shifts else None,
    )
    return PackedExpert(packed, given), Expert(numbers, given)


def check(
    kind: CodeKind,
    device: torch.device,
    *,
    tokens: int = 5,
    hidden: int = 40,
    intermediate: int = 24,
    group: int = 32,
    offsets: bool = False,
    zeros: bool = False,
    bias: bool = False,
    activation: Activation = "silu",
    config: Config | None = SMALL,
) -> None:
    """Compares in fp32, by the bound of numbers (test_experts.py).

    To make them of codes adds three units, beside dozens.
    """
    chosen = chosen_of(tokens, 2, 4).int().to(device)
    made = [
        product(kind, 4, outputs, inputs, group, device, offsets, bias, zeros)
        for outputs, inputs in ((2 * intermediate, hidden), (hidden, intermediate))
    ]
    x, shares = torch.randn(tokens, hidden, device=device), torch.rand(tokens, 2, device=device)
    with poisoned():
        found = experts(x, chosen, shares, made[0][0], made[1][0], activation, config=config)
    Problem(x, chosen, shares, made[0][1], made[1][1], activation).check(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offsets", [False, True])
def test_every_kind(kind: CodeKind, offsets: bool, device: torch.device) -> None:
    check(kind, device, offsets=offsets)


@pytest.mark.parametrize(("group", "tokens"), [(32, 5), (128, 5), (32, 70)])
def test_zeros(group: int, tokens: int, device: torch.device) -> None:
    check("int4", device, group=group, tokens=tokens, zeros=True, config=SMALL if tokens < 20 else None)


@pytest.mark.parametrize("activation", get_args(Activation))
def test_biases_and_activations(activation: Activation, device: torch.device) -> None:
    check("fp4", device, bias=True, activation=activation)


@pytest.mark.parametrize(("hidden", "intermediate", "group"), [(64, 32, 32), (33, 7, 16), (70, 36, 64), (70, 20, 99)])
def test_odd_sizes_and_groups(hidden: int, intermediate: int, group: int, device: torch.device) -> None:
    check("int8", device, hidden=hidden, intermediate=intermediate, group=group, bias=True)


@pytest.mark.parametrize("config", [None, *CANDIDATE_CONFIGS], ids=str)
def test_every_candidate_computes_the_same(config: Config | None, device: torch.device) -> None:
    tiles = (config or CANDIDATE_CONFIGS[-1]).tiles
    hidden = max(tiles["TILE"], 32 * tiles["RUNS"]) + 2
    check("int4", device, tokens=20, hidden=hidden, intermediate=tiles["TILE"] // 2 + 6, config=config)


def test_on_hopper_tiles_of_many_rows_have_128_outputs() -> None:
    """With 64, eight warps pass operands through shared memory in slices, behind 33 to 65 barriers a step."""
    x = torch.empty(1, 64, dtype=torch.bfloat16, device="meta")
    tiles = {}
    for sm in ((8, 0), (9, 0), (10, 0)):
        with assumed(*sm):
            tiles[sm] = [_default(x, rows).tiles["TILE"] for rows in (16, 64, 128)]
            assert _default(x.float(), 64) is CANDIDATE_CONFIGS[-1]
    assert tiles == {(8, 0): [64, 64, 64], (9, 0): [64, 128, 128], (10, 0): [64, 64, 64]}


@pytest.mark.parametrize("kind", ["int4", "fp8"])
def test_in_a_short_format_weights_are_rounded_to_it(kind: CodeKind, device: torch.device) -> None:
    """Shows that they are a dequantized model's, but where an output has one scale; what is between the products, and
    the outputs, are rounded too: a few units of the largest."""
    packed, numbers = product(kind, 4, 48, 40, 32, device, offsets=False, bias=False)
    second, second_numbers = product(kind, 4, 40, 24, 32, device, offsets=False, bias=False)
    x, shares = torch.randn(6, 40, device=device).half(), torch.rand(6, 2, device=device)
    chosen = chosen_of(6, 2, 4).int().to(device)
    found = experts(x, chosen, shares, packed, second, "silu")
    rounded = [Expert(each.weight.half(), None) for each in (numbers, second_numbers)]
    expected = experts(x, chosen, shares, rounded[0], rounded[1], "silu")
    assert (found - expected).abs().max() <= 4 * 2.0**-11 * expected.abs().max()


def test_a_scale_that_is_no_number_spoils_its_expert_alone(device: torch.device) -> None:
    first, _ = product("fp4", 3, 48, 64, 32, device, offsets=False, bias=False)
    second, _ = product("fp4", 3, 64, 24, 32, device, offsets=False, bias=False)
    first.weight.scales[1, -1, 3] = torch.nan
    chosen = torch.tensor([[0], [1], [2]], dtype=torch.int32, device=device)
    x: Tensor = torch.randn(3, 64, device=device)
    found = experts(x, chosen, torch.ones(3, 1, device=device), first, second, "silu")
    assert found[1].isnan().all() and found[[0, 2]].isfinite().all()
