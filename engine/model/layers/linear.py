"""The interfaces of linear layers, and of a backend that makes them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from engine.model.config import ExpertsMLP
from engine.model.families.expert_tensors import ExpertTensors
from engine.model.layers.adapted import Adapting
from engine.model.quantized import Form, Weight
from engine.parallel.sums import WHOLE_SUM, SumOrder


class Linear(Protocol):
    """Computes `y = x W^T + b`, `[rows, out]`, for `x` `[rows, in]`."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def held(self) -> list[Tensor]:
        """Returns the tensors that the layer keeps in memory."""
        ...


class Experts(Protocol):
    """Weighted sum of the experts of each token: `[tokens, hidden]` from `x` `[tokens, hidden]`."""

    def __call__(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Sums `shares[t, i] * expert(chosen[t, i])(x[t])` over the experts that token t uses.

        `chosen` is int32 and `shares` fp32, both `[tokens, used]`, contiguous. A token's experts differ from each
        other; the number `experts` stands for an expert of another rank, which is left out. A row's result depends on
        that row only.
        """
        ...

    def held(self) -> list[Tensor]: ...


class LatentProducts(Protocol):
    """Products of latent attention; `engine.model.layers.latent` has the formulas."""

    def absorbed(self, queries: Tensor) -> Tensor:
        """Returns `[tokens, heads, latent + rope]`, K_h^T a_h | b_h of `queries` `[tokens, heads, nope + rope]`."""
        ...

    def values(self, attended: Tensor) -> Tensor:
        """Returns `[tokens, heads, value]`, V_h times each head's sum of latent vectors `[tokens, heads, latent]`."""
        ...

    def expanded(self, latents: Tensor, heads: slice) -> tuple[Tensor, Tensor]:
        """Builds some heads' own part of keys `[tokens, heads, nope]`, and values `[tokens, heads, value]`.

        `latents` are `[tokens, latent]`; their rows may be strided.
        """
        ...

    def held(self) -> list[Tensor]: ...


AnyLinear = TypeVar("AnyLinear", bound=Linear, covariant=True)
"""The linear layers of one backend: its layers take no others."""


@dataclass(frozen=True)
class LinearWeights:
    """What one layer is made from: the weights of several layers with the same inputs."""

    parts: Sequence[Weight]  # as the checkpoint has them, in any float format or quantized, of one form or of several
    bias: Tensor | None = None  # [out of all parts], in the model's format
    adapting: Adapting | None = None  # then the layer is `Adaptable`, and each step's adapters are set there
    order: SumOrder = WHOLE_SUM  # of the native operators' sums; others sum in their own, and round a rank's part


class Linears(Protocol[AnyLinear]):
    """Makes linear layers of weights `[out, in]`, laid out as the device multiplies them best."""

    @property
    def forms(self) -> frozenset[Form]:
        """Returns the supported quantization formats; weights in other formats are dequantized."""
        ...

    def fused(self, weights: LinearWeights) -> AnyLinear:
        """Makes one layer from the weights of several; their outputs lie side by side."""
        ...

    def of_held(self, weight: Tensor) -> AnyLinear: ...

    def experts(
        self, mlp: ExpertsMLP, hidden: int, tensors: Iterable[ExpertTensors], held: slice | None = None
    ) -> Experts:
        """Makes a layer's experts, in the order of `tensors`, with biases in the model's format.

        `held` are their numbers, if other ranks have the layer's other experts. Then native operators, which have the
        same sums at every width, give this rank's part of a token's sum in fp32.
        """
        ...

    def latent(self, keys: Tensor, values: Tensor) -> LatentProducts:
        """Makes the products of latent attention: `[heads, nope, latent]` and `[heads, value, latent]`.

        Both are as the checkpoint has them, in any float format.
        """
        ...
