"""Multiplies with PyTorch operators, on any device.

On a CPU oneDNN's prepacked bf16 weights run 1 to 32 rows at two to four times the speed of
`torch.nn.functional.linear`, which lays its weights out anew on every call; in fp32 the plain operator stays: it is the
reference's own.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.backends.reference.experts import ReferenceExperts
from engine.backends.reference.latent_products import ReferenceLatentProducts
from engine.device import cpu_multiplies_bf16, to_device
from engine.model.config import ExpertsMLP
from engine.model.families.expert_tensors import ExpertTensors
from engine.model.layers.adapted import Adapting, LowRank
from engine.model.layers.linear import Experts, Linear, LinearWeights
from engine.model.quantized import Form, stacked

PACKED_FOR_ROWS = 8
"""The batch that oneDNN chooses its layout for; this one serves 1 to 512 rows about as well as one of their own."""


class PlainLinear:
    """Multiplies by weights as they are, `[out, in]`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)

    def held(self) -> list[Tensor]:
        return [self._weight] if self._bias is None else [self._weight, self._bias]


class OneDnnLinear:
    """Multiplies by weights in the blocked layout of oneDNN, which belongs to the CPU that packed it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        operators: Any = torch.ops.mkldnn
        self._weight = operators._reorder_linear_weight(weight, PACKED_FOR_ROWS)
        self._bias = bias
        self._multiply = operators._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = self._multiply(x, self._weight, self._bias, "none", [], "")
        return product

    def held(self) -> list[Tensor]:
        return [self._weight] if self._bias is None else [self._weight, self._bias]


class AdaptedLinear:
    """A linear layer, plus the LoRA changes of a step's rows, computed one adapter after the other."""

    def __init__(self, linear: Linear, adapting: Adapting) -> None:
        self._linear = linear
        self._adapting = adapting
        self._changes: dict[int, LowRank] = {}  # by slot

    def __call__(self, x: Tensor) -> Tensor:
        y = self._linear(x)
        if self._adapting.step is not None:
            rows = self._adapting.step.of_rows(len(x))
            for slot, first, end in zip(rows.slots.tolist(), rows.starts[:-1], rows.starts[1:], strict=True):
                change = self._changes.get(slot)
                if change is not None:
                    own = to_device(rows.order[first:end], x.device)
                    shrunk = functional.linear(x[own], change.a)
                    for part in change.parts:
                        rank, size = part.b.shape
                        added = shrunk[:, part.rank_first : part.rank_first + rank] @ part.b
                        y[:, part.first : part.first + size].index_add_(0, own, added)
        return y

    def put(self, slot: int, change: LowRank | None) -> None:
        if change is None:
            self._changes.pop(slot, None)
        else:
            self._changes[slot] = change

    def held(self) -> list[Tensor]:
        return self._linear.held()


class ReferenceLinears:
    forms: frozenset[Form] = frozenset()

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        packs = device.type == "cpu" and dtype == torch.bfloat16 and can_pack()
        self._make = OneDnnLinear if packs else PlainLinear

    def fused(self, weights: LinearWeights) -> Linear:
        linear = self._make(stacked(weights.parts, self._device, self._dtype), weights.bias)
        return linear if weights.adapting is None else AdaptedLinear(linear, weights.adapting)

    def of_held(self, weight: Tensor) -> Linear:
        return self._make(weight, None)

    def experts(
        self, mlp: ExpertsMLP, hidden: int, tensors: Iterable[ExpertTensors], held: slice | None = None
    ) -> Experts:
        products = [
            (self.fused(LinearWeights(e.gate_up, e.gate_up_bias)), self.fused(LinearWeights([e.down], e.down_bias)))
            for e in tensors
        ]
        return ReferenceExperts(products, mlp.activation)

    def latent(self, keys: Tensor, values: Tensor) -> ReferenceLatentProducts:
        made = (part.to(self._device, self._dtype).contiguous() for part in (keys, values))
        return ReferenceLatentProducts(*made)


def can_pack() -> bool:
    """Returns whether oneDNN multiplies bf16 and PyTorch offers its packing."""
    operators: Any = torch.ops.mkldnn
    packing = hasattr(operators, "_reorder_linear_weight") and hasattr(operators, "_linear_pointwise")
    backend: Any = torch.backends.mkldnn
    return packing and bool(backend.is_available()) and cpu_multiplies_bf16()
