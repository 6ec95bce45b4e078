"""Computes mixtures of experts with packed weights for few tokens: bound by reading the codes of those chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from benchmarks.kernels.moe.experts import CHECKED, DEEPSEEK, GPT_OSS, MIXTRAL, QWEN_MOE, SMALL, SMALL_BIASED, Layer
from benchmarks.kernels.quantized.weights import BLOCKS, FP8, INT4, INT8, MXFP4, Groups, bytes_of, weights
from kernels.moe.expert_products import Expert
from kernels.moe.experts import experts, reference
from kernels.moe.packed_products import CONFIGS, PackedExpert
from kernels.quantized.packed import one_of
from kernels.quantized.packed import reference as unpacked
from kernels.tuning import Config

LIMIT: Limit = "copy"
CANDIDATES = CONFIGS

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class PackedMixture:
    """Describes `tokens` tokens, each of which chooses at random among experts whose weights are quantized."""

    tokens: int
    layer: Layer
    groups: Groups
    target: Target | None = None

    def __str__(self) -> str:
        layer = self.layer
        sizes = f"{layer.used} of {layer.experts} experts {layer.hidden} x {layer.intermediate}"
        return f"{self.tokens} tokens, {layer.name}: {sizes}, {self.groups}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        layer = self.layer
        x = random((self.tokens, layer.hidden), device, dtype)
        chosen = torch.rand((self.tokens, layer.experts), device=device).topk(layer.used).indices.int()
        shares = torch.rand((self.tokens, layer.used), device=device)
        first = self._product(2 * layer.intermediate, layer.hidden, device, dtype)
        second = self._product(layer.hidden, layer.intermediate, device, dtype)

        def run(config: Config | None) -> Tensor:
            return experts(x, chosen, shares, first, second, layer.activation, config=config)

        def check(config: Config | None) -> None:
            few = slice(0, CHECKED)
            numbers = (_numbers(first, dtype), _numbers(second, dtype))
            close(run(config)[few], reference(x[few].double(), chosen[few], shares[few], *numbers, layer.activation))

        met = layer.experts if device.type == "meta" else len(chosen.unique())
        moved = 2 * x.numel() + 2 * chosen.numel() * (layer.hidden + layer.intermediate)
        read = (bytes_of(first.weight) + bytes_of(second.weight)) * met // layer.experts
        operations = 6 * chosen.numel() * layer.hidden * layer.intermediate
        return Case(run, check, bytes=read + dtype.itemsize * moved, operations=operations)

    def _product(self, outputs: int, inputs: int, device: torch.device, dtype: torch.dtype) -> PackedExpert:
        count = self.layer.experts
        bias = random((count, outputs), device, dtype) if self.layer.bias else None
        return PackedExpert(weights(self.groups, outputs, inputs, device, (count,)), bias)


def _numbers(product: PackedExpert, dtype: torch.dtype) -> Expert:
    """Returns the numbers of all experts in the format that they are multiplied in."""
    weight = product.weight
    return Expert(
        torch.stack([unpacked(one_of(weight, each)).to(dtype) for each in range(len(weight.codes))]), product.bias
    )


SHAPES: Mapping[Size, Sequence[PackedMixture]] = {
    "full": [
        *(PackedMixture(tokens, GPT_OSS, MXFP4) for tokens in (1, 8, 32)),
        *(PackedMixture(tokens, QWEN_MOE, INT4) for tokens in (1, 32)),
        *(PackedMixture(8, MIXTRAL, groups) for groups in (INT4, INT8, FP8)),
        PackedMixture(32, DEEPSEEK, BLOCKS),
    ],
    "tiny": [PackedMixture(1, SMALL, INT4), PackedMixture(5, SMALL_BIASED, FP8)],
    "compiled": [PackedMixture(1, SMALL, INT8), PackedMixture(8, QWEN_MOE._replace(bias=True), MXFP4)],
}
