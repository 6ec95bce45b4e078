"""Has a backend multiply where a model of transformers has plain linear layers."""

from collections.abc import Set
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from core.config import Quantization
from core.status import Progress
from engine.model.linear import Linear, Linears
from engine.model.quantization import quantized


class BackendLinear(nn.Module):
    """Stands in the place of a linear layer of a model of transformers."""

    def __init__(self, linear: Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = linear
        self.weight = torch.empty(0, dtype=dtype)  # some models ask a layer's weight for its number format

    def forward(self, x: Tensor) -> Tensor:
        """Multiplies the last axis of `x`, whatever the others are."""
        y = self.linear(x.reshape(-1, x.shape[-1]))
        return y.view(*x.shape[:-1], y.shape[-1])


def is_linear(module: nn.Module) -> bool:
    """Tells whether a module is a linear layer and nothing more."""
    return type(module) in (nn.Linear, Conv1D)


def replace_linears(
    model: nn.Module,
    products: Set[int],
    linears: Linears[Linear],
    dtype: torch.dtype,
    quantization: Quantization,
    progress: Progress,
) -> None:
    """Puts the backend's linear layers in the place of the model's own, one by one: no weight is held twice.

    It replaces those whose ids are in `products`; but those in another number format than the model's stay.
    """
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if id(child) in products and child.weight.dtype == dtype
    ]
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    made: dict[int, BackendLinear] = {}  # by the id of a layer, which several places may share
    total = len(places)
    places.reverse()
    while places:
        progress("packing weights", 100.0 * (total - len(places)) / total)
        parent, name, child = places.pop()
        if id(child) not in made:
            made[id(child)] = BackendLinear(
                _of(child, linears, quantization, held=child.weight is embedding.weight), dtype
            )
        setattr(parent, name, made[id(child)])
    progress("packing weights", 100.0)


def _of(child: Any, linears: Linears[Linear], quantization: Quantization, *, held: bool) -> Linear:
    """Makes the backend's layer of one of the model's; a weight that is `held` by the embedding as well stays there."""
    if held and child.bias is None and quantization == "none":
        return linears.of_held(child.weight.data)
    weight = child.weight.data.T if isinstance(child, Conv1D) else child.weight.data
    return linears.fused([quantized(weight, quantization)], None if child.bias is None else child.bias.data)
