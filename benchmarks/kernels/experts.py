"""Rows of mixtures of experts: routing, sorting and products, with plain and packed weights."""

from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Inputs, close, compared
from benchmarks.kernels.quantized import has_row_product
from benchmarks.kernels.weights import Groups, Sizes, packed_weights, weight_bytes
from kernels.gate import Activation
from kernels.moe import experts, route, sort_by_expert
from kernels.moe.expert_products import rows_for
from kernels.moe.packed_products import PackedExpert
from kernels.moe.route import Routing
from kernels.moe.sort_by_expert import NO_PAIR, Tiles
from kernels.quantized import row_product, rows
from kernels.quantized.packed import one_of
from kernels.quantized.packed import reference as unpacked
from kernels.tuning import Config

CHECKED_TOKENS = 4
"""Tokens compared with the reference, which takes the weights one expert after the other in fp64."""
MAX_SHARE_ERROR = 1e-5
"""Relative error of a share: scores are fp32."""


class ExpertLayer(NamedTuple):
    """Experts of a model's layer."""

    name: str
    experts: int
    used: int
    hidden: int
    intermediate: int
    activation: Activation = "silu"
    bias: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.used} of {self.experts} x {self.hidden} x {self.intermediate})"


def mixture(
    inputs: Inputs, tokens: int, layer: ExpertLayer, groups: Groups | None = None, *, as_bytes: bool = False
) -> Case:
    """Makes a row; `as_bytes` quantizes the tokens, too."""
    x = inputs.normal(tokens, layer.hidden)
    chosen = choices(inputs, tokens, layer.experts, layer.used)
    shares = torch.rand((tokens, layer.used), device=inputs.device)
    first, second = (
        product(inputs, layer, Sizes(*sizes), groups, as_bytes)
        for sizes in ((2 * layer.intermediate, layer.hidden), (layer.hidden, layer.intermediate))
    )

    def run(config: Config | None) -> Tensor:
        return experts.experts(x, chosen, shares, first, second, layer.activation, config=config)

    def check(config: Config | None) -> None:
        # A value between the products may be rounded the other way where weights were rounded: exact weights leave few.
        dtype = torch.float32 if as_bytes else inputs.dtype
        few, plain = slice(0, CHECKED_TOKENS), [dequantized(each, dtype) for each in (first, second)]
        form = first.form if isinstance(first, PackedExpert) else None

        def rounded(values: Tensor) -> Tensor:
            return values if form is None else rows.dequantized(rows.reference(values.to(inputs.dtype), form))

        given = x[few].double(), chosen[few], shares[few]
        expected = experts.reference(*given, plain[0], plain[1], layer.activation, rounded)
        close(run(config)[few], expected)

    met = len(chosen.unique()) if inputs.real else layer.experts
    read = sum(expert_bytes(each) for each in (first, second)) * met // layer.experts
    moved = 2 * x.numel() + 2 * chosen.numel() * (layer.hidden + layer.intermediate)
    return Case(
        run,
        check,
        bytes=read + inputs.dtype.itemsize * moved,
        operations=6 * chosen.numel() * layer.hidden * layer.intermediate,
    )


def choices(inputs: Inputs, tokens: int, count: int, used: int) -> Tensor:
    return torch.rand((tokens, count), device=inputs.device).topk(used).indices.int()


def has_mixture_as_bytes(layer: ExpertLayer, groups: Groups, **_: object) -> bool:
    return has_row_product(Sizes(layer.hidden, layer.intermediate), groups)


def product(
    inputs: Inputs, layer: ExpertLayer, sizes: Sizes, groups: Groups | None, as_bytes: bool = False
) -> "experts.Expert | PackedExpert":
    bias = inputs.normal(layer.experts, sizes.outputs) if layer.bias else None
    if groups is not None:
        packed = packed_weights(groups, sizes, inputs.device, (layer.experts,))
        return PackedExpert(packed, bias, row_product.row_format(packed, inputs.device) if as_bytes else None)
    weight = inputs.normal(layer.experts, *sizes)
    weight *= sizes.inputs**-0.5
    return experts.Expert(weight, bias)


def dequantized(each: "experts.Expert | PackedExpert", dtype: torch.dtype) -> "experts.Expert":
    if not isinstance(each, PackedExpert):
        return each
    count = len(each.weight.codes)
    return experts.Expert(torch.stack([unpacked(one_of(each.weight, i)).to(dtype) for i in range(count)]), each.bias)


def expert_bytes(each: "experts.Expert | PackedExpert") -> int:
    return weight_bytes(each.weight) if isinstance(each, PackedExpert) else each.weight.numel() * each.weight.itemsize


def routing(inputs: Inputs, tokens: int, experts: int, routing: Routing, corrected: bool = False) -> Case:
    logits = inputs.normal(tokens, experts, dtype=torch.float32)
    correction = inputs.normal(experts, dtype=torch.float32) / 8 if corrected else None

    def same(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
        alike = (found[0] == wanted[0]).all(1)  # scores may be closer than the two roundings of fp32
        assert alike.float().mean() > 0.99, "other experts are chosen"
        assert ((found[1] - wanted[1])[alike].abs() <= MAX_SHARE_ERROR * wanted[1][alike].abs()).all()

    return compared(
        route.route,
        route.reference,
        *(logits, routing, correction),
        same=same,
        bytes=logits.numel() * 4 + tokens * routing.used * 8,
        peers={"operators": lambda: route.reference(logits, routing, correction)},
    )


def sorting(inputs: Inputs, tokens: int, used: int, experts: int) -> Case:
    chosen = choices(inputs, tokens, experts, used)
    rows = rows_for(chosen.numel(), experts, inputs.dtype)

    def same(found: Tiles, expected: Tiles) -> None:
        assert found.owners.equal(expected.owners), "tiles of other experts"
        needed = int((found.owners != NO_PAIR).sum()) * rows
        assert found.pairs[:needed].equal(expected.pairs[:needed]), "other pairs"

    return compared(
        sort_by_expert.sort_by_expert,
        sort_by_expert.reference,
        *(chosen, experts, rows),
        same=same,
        bytes=8 * chosen.numel(),
        peers={"sort": lambda: chosen.flatten().sort(stable=True).indices},
    )
