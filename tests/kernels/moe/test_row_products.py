"""Quantized tokens times weights of 8 bits of their experts, against float64 of what both stand for."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.device import assumed
from kernels.gate import Activation
from kernels.gate import reference as gated
from kernels.moe import row_products
from kernels.moe.experts import experts
from kernels.moe.packed_products import PackedExpert
from kernels.moe.row_products import CANDIDATE_CONFIGS, down, gate_up
from kernels.moe.sort_by_expert import sort_by_expert
from kernels.quantized.packed import BLOCK_OUTPUTS, CodeKind
from kernels.quantized.product import MAX_SPLIT_K_ROWS
from kernels.quantized.row_product import row_format
from kernels.quantized.rows import QuantizedRows, dequantized, quantize_rows
from kernels.tuning import Config
from tests.kernels.moe.test_experts import drawn as chosen_of
from tests.kernels.moe.test_packed_products import product
from tests.kernels.poison import poisoned

EXPERTS, USED = 4, 2
SMALL = Config({"TILE": 16, "RUNS": 2, "GROUP": 2}, warps=4, stages=2)
MANY = MAX_SPLIT_K_ROWS + 3


def quantized(x: Tensor, weight: PackedExpert) -> QuantizedRows:
    form = row_format(weight.weight, x.device)
    assert form is not None
    return quantize_rows(x, form)


def check(
    kind: CodeKind,
    device: torch.device,
    *,
    tokens: int = 9,
    hidden: int = 64,
    intermediate: int = 36,
    group: int = 1 << 20,
    bias: bool = False,
    activation: Activation = "silu",
    config: Config | None = SMALL,
) -> None:
    """Compares both products in fp32: sums of some hundred terms, of which scales and biases round three more."""
    first, numbers = product(kind, EXPERTS, 2 * intermediate, hidden, min(group, hidden), device, False, bias)
    second, others = product(kind, EXPERTS, hidden, intermediate, min(group, intermediate), device, False, bias)
    chosen, shares = chosen_of(tokens, USED, EXPERTS).int().to(device), torch.rand(tokens, USED, device=device)
    tiles = sort_by_expert(chosen, EXPERTS, 64)
    x = quantized(torch.randn(tokens, hidden, device=device), first)
    y = quantized(torch.randn(tokens * USED, intermediate, device=device), second)
    with poisoned():
        found = gate_up(x, first, tiles, USED, activation, torch.float32, config=config)
        given = down(y, second, tiles, shares, torch.float32, config=config)
    owner = chosen.flatten().long()
    own = dequantized(x).repeat_interleave(USED, 0)
    expected = torch.einsum("pi,poi->po", own, numbers.weight.double()[owner])
    wanted = torch.einsum("pi,poi->po", dequantized(y), others.weight.double()[owner])
    if numbers.bias is not None and others.bias is not None:
        expected, wanted = expected + numbers.bias[owner], wanted + others.bias[owner]
    expected, wanted = gated(expected, activation), wanted * shares.flatten()[:, None].double()
    for ours, exact in ((found, expected), (given, wanted)):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=3e-6 * float(exact.abs().max()))


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize(("hidden", "intermediate", "group"), [(64, 36, 1 << 20), (70, 33, 32), (256, 160, 128)])
def test_every_kind_and_group(kind: CodeKind, hidden: int, intermediate: int, group: int, device: torch.device) -> None:
    check(kind, device, hidden=hidden, intermediate=intermediate, group=group, bias=True)


def test_another_activation_and_many_tokens(device: torch.device) -> None:
    check("int8", device, tokens=MANY, activation="gelu_tanh")


@pytest.mark.parametrize("config", [None, *CANDIDATE_CONFIGS], ids=str)
def test_every_candidate_computes_the_same(config: Config | None, device: torch.device) -> None:
    check("fp8", device, hidden=130, intermediate=70, group=32, config=config)


def blocks(outputs: int, inputs: int, device: torch.device, shared: bool = True) -> PackedExpert:
    """Returns a product of fp8 experts with a scale for each block, which it says only if `shared`."""
    made, _ = product("fp8", 2, outputs, inputs, 128, device, False, False)
    scales = made.weight.scales[..., ::BLOCK_OUTPUTS].repeat_interleave(BLOCK_OUTPUTS, 2)[..., :outputs].contiguous()
    return PackedExpert(type(made.weight)(**{**vars(made.weight), "scales": scales, "by_block": shared}), None)


@pytest.mark.parametrize("intermediate", [128, 192])
def test_scales_of_blocks_are_those_of_their_outputs(intermediate: int, device: torch.device) -> None:
    """Also where a block of gate ends within a tile, or within up's first."""
    first = blocks(2 * intermediate, 300, device)
    plain = PackedExpert(type(first.weight)(**{**vars(first.weight), "by_block": False}), None)
    chosen = chosen_of(7, 1, 2).int().to(device)
    tiles, x = sort_by_expert(chosen, 2, 64), quantized(torch.randn(7, 300, device=device), first)
    found = [gate_up(x, each, tiles, 1, "silu", torch.float32) for each in (first, plain)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_many_tokens_are_quantized_and_few_are_not(kind: CodeKind, device: torch.device) -> None:
    plain = [product(kind, EXPERTS, *sizes, 128, device, False, True)[0] for sizes in ((48, 40), (40, 24))]
    forms = [PackedExpert(each.weight, each.bias, row_format(each.weight, device)) for each in plain]
    chosen, shares = chosen_of(MANY, USED, EXPERTS).int().to(device), torch.rand(MANY, USED, device=device)
    x = torch.randn(MANY, 40, device=device)
    tiles = sort_by_expert(chosen, EXPERTS, 64)
    between = gate_up(quantized(x, plain[0]), plain[0], tiles, USED, "silu", x.dtype)
    given = down(quantized(between, plain[1]), plain[1], tiles, shares, x.dtype)
    found = experts(x, chosen, shares, forms[0], forms[1], "silu", rows=64)
    torch.testing.assert_close(found, given.view(MANY, USED, -1).sum(1))
    for tokens, rows in ((MAX_SPLIT_K_ROWS, 64), (MANY, 16)):
        few = x[:tokens], chosen[:tokens].contiguous(), shares[:tokens].contiguous()
        exactly = experts(*few, plain[0], plain[1], "silu", rows=rows)
        assert experts(*few, forms[0], forms[1], "silu", rows=rows).equal(exactly)
        assert not torch.allclose(found[:tokens], exactly, rtol=1e-4), "what is rounded shows"


def test_the_default_follows_the_device_and_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def tuned(kernel: str, shape: str, device: torch.device, default: Config) -> Config:
        asked.append(default)
        return SMALL

    monkeypatch.setattr(row_products, "tuned", tuned)
    for sm in ((9, 0), (8, 9)):
        with assumed(*sm):
            check("fp8", torch.device("cpu"), config=None)
    few_warps = [replace(each, warps=each.warps // 2) for each in CANDIDATE_CONFIGS[2:]]
    assert asked == [*CANDIDATE_CONFIGS[:2], *few_warps], "tiles of 64 rows"
