"""Computes mixtures of experts for few tokens: bound by reading the weights of the experts that are chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from kernels.gate import Activation
from kernels.moe.experts import CANDIDATES, Expert, experts, reference
from kernels.tuning import Config

LIMIT: Limit = "copy"
CHECKED = 4
"""Tokens that are compared with the reference, which takes the weights one expert after the other in fp64."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


class Layer(NamedTuple):
    """Describes the experts of a model's layer."""

    name: str
    experts: int
    used: int
    hidden: int
    intermediate: int
    activation: Activation = "silu"
    bias: bool = False


MIXTRAL = Layer("Mixtral-8x7B", 8, 2, 4096, 14336)
QWEN_MOE = Layer("Qwen3-30B-A3B", 128, 8, 2048, 768)
DEEPSEEK_LITE = Layer("DeepSeek-V2-Lite", 64, 6, 2048, 1408)
DEEPSEEK = Layer("DeepSeek-V3", 256, 8, 7168, 2048)
GPT_OSS = Layer("gpt-oss-20b", 32, 4, 2880, 2880, "clamped_swiglu", bias=True)
SMALL = Layer("small", 5, 2, 40, 24)
SMALL_BIASED = Layer("small", 4, 3, 24, 16, "gelu_tanh", bias=True)


@dataclass(frozen=True)
class Mixture:
    """Describes `tokens` tokens, each of which chooses at random."""

    tokens: int
    layer: Layer
    target: Target | None = None

    def __str__(self) -> str:
        layer = self.layer
        sizes = f"{layer.used} of {layer.experts} experts {layer.hidden} x {layer.intermediate}"
        return f"{self.tokens} tokens, {layer.name}: {sizes}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        layer = self.layer
        x = random((self.tokens, layer.hidden), device, dtype)
        chosen = torch.rand((self.tokens, layer.experts), device=device).topk(layer.used).indices.int()
        shares = torch.rand((self.tokens, layer.used), device=device)
        first = product(layer, 2 * layer.intermediate, layer.hidden, device, dtype)
        second = product(layer, layer.hidden, layer.intermediate, device, dtype)

        def run(config: Config | None) -> Tensor:
            return experts(x, chosen, shares, first, second, layer.activation, config=config)

        def check(config: Config | None) -> None:
            few = slice(0, CHECKED)
            close(
                run(config)[few], reference(x[few].double(), chosen[few], shares[few], first, second, layer.activation)
            )

        met = layer.experts if device.type == "meta" else len(chosen.unique())
        weights = 3 * layer.hidden * layer.intermediate
        pairs = chosen.numel()
        moved = 2 * x.numel() + 2 * pairs * (layer.hidden + layer.intermediate)
        return Case(run, check, bytes=dtype.itemsize * (met * weights + moved), operations=2 * pairs * weights)


def product(layer: Layer, outputs: int, inputs: int, device: torch.device, dtype: torch.dtype) -> Expert:
    """Draws weights of outputs as large as inputs."""
    weight = random((layer.experts, outputs, inputs), device, dtype)
    weight *= inputs**-0.5
    return Expert(weight, random((layer.experts, outputs), device, dtype) if layer.bias else None)


SHAPES: Mapping[Size, Sequence[Mixture]] = {
    "full": [
        *(Mixture(tokens, QWEN_MOE) for tokens in (1, 8, 32, 128)),
        *(Mixture(tokens, layer) for layer in (MIXTRAL, GPT_OSS, DEEPSEEK_LITE) for tokens in (1, 8, 32)),
        *(Mixture(tokens, DEEPSEEK) for tokens in (1, 32)),
    ],
    "tiny": [Mixture(1, SMALL), Mixture(5, SMALL_BIASED)],
    "compiled": [Mixture(1, SMALL), Mixture(8, QWEN_MOE._replace(bias=True))],
}
