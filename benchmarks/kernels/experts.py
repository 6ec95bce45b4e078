"""Rows of mixtures of experts: routing, sorting and products, with plain and packed weights."""

from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Inputs, Kernel, close, grid, returning
from benchmarks.kernels.weights import FP8, FP8_BLOCKS, INT4, INT8, MXFP4, Groups, Sizes, packed_weights, weight_bytes
from kernels.gate import Activation
from kernels.moe import experts, route, sort_by_expert
from kernels.moe.expert_products import rows_for
from kernels.moe.packed_products import CANDIDATE_CONFIGS, PackedExpert
from kernels.moe.route import Routing
from kernels.moe.sort_by_expert import NO_PAIR, Tiles
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


MIXTRAL = ExpertLayer("Mixtral-8x7B", 8, 2, 4096, 14336)
QWEN_MOE = ExpertLayer("Qwen3-30B-A3B", 128, 8, 2048, 768)
DEEPSEEK_LITE = ExpertLayer("DeepSeek-V2-Lite", 64, 6, 2048, 1408)
DEEPSEEK = ExpertLayer("DeepSeek-V3", 256, 8, 7168, 2048)
GPT_OSS = ExpertLayer("gpt-oss-20b", 32, 4, 2880, 2880, "clamped_swiglu", bias=True)
SMALL = ExpertLayer("small", 5, 2, 40, 24)
SMALL_BIASED = ExpertLayer("small", 4, 3, 24, 16, "gelu_tanh", bias=True)


def mixture(inputs: Inputs, tokens: int, layer: ExpertLayer, groups: Groups | None = None) -> Case:
    x = inputs.normal(tokens, layer.hidden)
    chosen = choices(inputs, tokens, layer.experts, layer.used)
    shares = torch.rand((tokens, layer.used), device=inputs.device)
    first, second = (
        product(inputs, layer, Sizes(*sizes), groups)
        for sizes in ((2 * layer.intermediate, layer.hidden), (layer.hidden, layer.intermediate))
    )

    def run(config: Config | None) -> Tensor:
        return experts.experts(x, chosen, shares, first, second, layer.activation, config=config)

    def check(config: Config | None) -> None:
        few, plain = slice(0, CHECKED_TOKENS), [dequantized(each, inputs.dtype) for each in (first, second)]
        expected = experts.reference(x[few].double(), chosen[few], shares[few], plain[0], plain[1], layer.activation)
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


def product(inputs: Inputs, layer: ExpertLayer, sizes: Sizes, groups: Groups | None) -> "experts.Expert | PackedExpert":
    bias = inputs.normal(layer.experts, sizes.outputs) if layer.bias else None
    if groups is not None:
        return PackedExpert(packed_weights(groups, sizes, inputs.device, (layer.experts,)), bias)
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

    def expected() -> tuple[Tensor, Tensor]:
        return route.reference(logits, routing, correction)

    def same(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
        alike = (found[0] == wanted[0]).all(1)  # scores may be closer than the two roundings of fp32
        assert alike.float().mean() > 0.99, "other experts are chosen"
        assert ((found[1] - wanted[1])[alike].abs() <= MAX_SHARE_ERROR * wanted[1][alike].abs()).all()

    return returning(
        lambda config: route.route(logits, routing, correction, config=config),
        expected,
        same,
        bytes=logits.numel() * 4 + tokens * routing.used * 8,
        peers={"operators": expected} if inputs.real else {},
    )


def sorting(inputs: Inputs, tokens: int, used: int, experts: int) -> Case:
    chosen = choices(inputs, tokens, experts, used)
    rows = rows_for(chosen.numel(), experts, inputs.dtype)

    def same(found: Tiles, expected: Tiles) -> None:
        assert found.owners.equal(expected.owners), "tiles of other experts"
        needed = int((found.owners != NO_PAIR).sum()) * rows
        assert found.pairs[:needed].equal(expected.pairs[:needed]), "other pairs"

    return returning(
        lambda config: sort_by_expert.sort_by_expert(chosen, experts, rows, config=config),
        lambda: sort_by_expert.reference(chosen, experts, rows),
        same,
        bytes=8 * chosen.numel(),
        peers={"sort": lambda: chosen.flatten().sort(stable=True).indices} if inputs.real else {},
    )


GROUPED = Routing(8, "sigmoid", normalized=True, scale=2.5, groups=8, groups_used=4, best_two=True)
"""Of DeepSeek-V3."""
QWEN_BIASED = QWEN_MOE._replace(bias=True)

KERNELS = {
    "route": Kernel(
        "copy",
        route.CANDIDATE_CONFIGS,
        routing,
        full=[
            *grid(tokens=[1, 32, 8192], experts=128, routing=Routing(8, normalized=True)),  # Qwen3-30B-A3B
            *grid(tokens=[1, 32, 8192], experts=8, routing=Routing(2, "softmax_of_used")),  # Mixtral
            *grid(tokens=[1, 32, 8192], experts=32, routing=Routing(4, "softmax_of_used")),  # gpt-oss
            *grid(tokens=[1, 32, 8192], experts=256, routing=GROUPED, corrected=True),
        ],
        tiny=[
            *grid(tokens=3, experts=7, routing=Routing(3)),
            *grid(tokens=2, experts=16, routing=GROUPED, corrected=True),
        ],
        compiled=[
            *grid(tokens=2, experts=160, routing=Routing(6, scale=16.0, groups=8, groups_used=3)),
            *grid(tokens=2, experts=512, routing=Routing(10)),
        ],
    ),
    "sort_by_expert": Kernel(
        "copy",
        sort_by_expert.CANDIDATE_CONFIGS,
        sorting,
        full=[*grid(tokens=[1, 32, 8192], used=8, experts=[128, 256]), *grid(tokens=[1, 32, 8192], used=2, experts=8)],
        tiny=grid(tokens=5, used=2, experts=4),
        compiled=[*grid(tokens=32, used=4, experts=32), *grid(tokens=32, used=6, experts=160)],
    ),
    "experts": Kernel(
        "copy",
        experts.CANDIDATE_CONFIGS,
        mixture,
        full=[
            *grid(tokens=[1, 8, 32, 128], layer=QWEN_MOE),
            *grid(tokens=[1, 8, 32], layer=[MIXTRAL, GPT_OSS, DEEPSEEK_LITE]),
            *grid(tokens=[1, 32], layer=DEEPSEEK),
        ],
        tiny=[*grid(tokens=1, layer=SMALL), *grid(tokens=5, layer=SMALL_BIASED)],
        compiled=[*grid(tokens=1, layer=SMALL), *grid(tokens=8, layer=QWEN_BIASED)],
    ),
    "experts_prefill": Kernel(
        "multiply",
        experts.CANDIDATE_CONFIGS,
        mixture,
        full=[
            *grid(tokens=8192, layer=[QWEN_MOE, MIXTRAL, GPT_OSS, DEEPSEEK_LITE, DEEPSEEK]),
            *grid(tokens=512, layer=[QWEN_MOE, MIXTRAL]),
        ],
        tiny=grid(tokens=40, layer=SMALL),
        compiled=[*grid(tokens=100, layer=SMALL), *grid(tokens=256, layer=QWEN_BIASED)],
    ),
    "quantized_experts": Kernel(
        "copy",
        CANDIDATE_CONFIGS,
        mixture,
        full=[
            *grid(tokens=[1, 8, 32], layer=GPT_OSS, groups=MXFP4),
            *grid(tokens=[1, 32], layer=QWEN_MOE, groups=INT4),
            *grid(tokens=8, layer=MIXTRAL, groups=[INT4, INT8, FP8]),
            *grid(tokens=32, layer=DEEPSEEK, groups=FP8_BLOCKS),
        ],
        tiny=[*grid(tokens=1, layer=SMALL, groups=INT4), *grid(tokens=5, layer=SMALL_BIASED, groups=FP8)],
        compiled=[*grid(tokens=1, layer=SMALL, groups=INT8), *grid(tokens=8, layer=QWEN_BIASED, groups=MXFP4)],
    ),
    "quantized_experts_prefill": Kernel(
        "multiply",
        CANDIDATE_CONFIGS,
        mixture,
        full=[
            *grid(tokens=8192, layer=GPT_OSS, groups=MXFP4),
            *grid(tokens=[512, 8192], layer=QWEN_MOE, groups=INT4),
            *grid(tokens=8192, layer=MIXTRAL, groups=INT8),
            *grid(tokens=8192, layer=DEEPSEEK, groups=FP8_BLOCKS),
        ],
        tiny=grid(tokens=40, layer=SMALL, groups=MXFP4),
        compiled=[*grid(tokens=100, layer=SMALL, groups=INT4), *grid(tokens=512, layer=GPT_OSS, groups=MXFP4)],
    ),
}
