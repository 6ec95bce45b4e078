"""Replaces the linear layers of a transformers model by a backend's, which adapters may change."""

from collections.abc import Set
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from contracts.kinds import Quantization
from engine.model.layers.adapted import Adaptable, AdapterTarget, Adapting
from engine.model.layers.linear import Linear, Linears, LinearWeights
from engine.model.quantization import of_head, quantized
from engine.model.quantized import Quantized
from infra.process.status import Progress


class BackendLinear(nn.Module):
    """Replaces a linear layer of a transformers model."""

    def __init__(self, linear: Linear, dtype: torch.dtype, adapting: Adapting | None) -> None:
        """With `adapting`, adapters may change it: it always gets one row for each token of a step."""
        super().__init__()
        self.linear = linear
        self._adapting = adapting
        self.weight = torch.empty(0, dtype=dtype)  # some models read the dtype of a layer's weight

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        step = None if self._adapting is None else self._adapting.step
        assert step is None or len(rows) == step.tokens, "a layer with adapters got other rows than the step's tokens"
        y = self.linear(rows)
        return y.view(*x.shape[:-1], y.shape[-1])


def is_linear(module: nn.Module) -> bool:
    return type(module) in (nn.Linear, Conv1D)


def round_linears(
    model: nn.Module, products: Set[int], dtype: torch.dtype, quantization: Quantization, progress: Progress
) -> dict[int, Quantized]:
    """Quantizes the model's linear layers, and replaces their weights by the dequantized values.

    Returns the quantized weights by id of the layer. An embedding that is tied to the head stays unchanged.
    """
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    layers = {id(child): child for _, _, child in _linears(model, products, dtype)}
    made: dict[int, Quantized] = {}
    for count, (key, child) in enumerate(layers.items()):
        progress("quantizing weights", 100.0 * count / len(layers))
        weight = quantized(_weight(child), of_head(quantization) if child is head else quantization)
        assert isinstance(weight, Quantized)
        made[key] = weight
        numbers = torch.empty_like(child.weight.data)
        weight.write(numbers.T if isinstance(child, Conv1D) else numbers)
        child.weight = nn.Parameter(numbers, requires_grad=False)
    return made


def replace_linears(
    model: nn.Module,
    products: Set[int],
    linears: Linears[Linear],
    dtype: torch.dtype,
    quantized: dict[int, Quantized],
    progress: Progress,
    adapting: Adapting | None,
    of_all_tokens: Set[int],
) -> list[tuple[AdapterTarget, Adaptable]]:
    """Replaces the model's linear layers by the backend's, one by one, so that no weight is in memory twice.

    Only layers whose ids are in `products`, with weights in `dtype`. Their quantized weights are popped from
    `quantized`. With `adapting`, returns the layers that adapters can change: `of_all_tokens`, but for the head.
    """
    remaining = _linears(model, products, dtype)
    names = {id(module): name for name, module in model.named_modules()}
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    targets: list[tuple[AdapterTarget, Adaptable]] = []
    made: dict[int, BackendLinear] = {}  # by id of the layer, which several modules may share
    total = len(remaining)
    remaining.reverse()
    while remaining:
        progress("packing weights", 100.0 * (total - len(remaining)) / total)
        parent, name, child = remaining.pop()
        if id(child) not in made:
            weight = quantized.pop(id(child), None)
            own = adapting if id(child) in of_all_tokens and child is not head else None
            layer = _of(child, weight, linears, own, held=child.weight is embedding.weight)
            made[id(child)] = BackendLinear(layer, dtype, own)
            if own is not None:
                changed: Any = layer  # `Adaptable`, as `Linears.fused` promises
                targets.append((_target(names[id(child)], *_weight(child).shape), changed))
        setattr(parent, name, made[id(child)])
    progress("packing weights", 100.0)
    return targets


def _target(name: str, outputs: int, inputs: int) -> AdapterTarget:
    return AdapterTarget(
        names=(name,),
        sizes=(outputs,),
        inputs=inputs,
        scale=1.0,
        shapes=((outputs, inputs),),
        outputs=(slice(None),),
        columns=slice(None),
    )


def _linears(model: nn.Module, products: Set[int], dtype: torch.dtype) -> list[tuple[nn.Module, str, Any]]:
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if id(child) in products and child.weight.dtype == dtype
    ]


def _of(
    child: Any, weight: Quantized | None, linears: Linears[Linear], adapting: Adapting | None, *, held: bool
) -> Linear:
    """Returns the backend's layer for a model's layer; a weight that the embedding shares (`held`) is not copied."""
    if held and child.bias is None:
        return linears.of_held(child.weight.data)
    return linears.fused(
        LinearWeights([weight or _weight(child)], None if child.bias is None else child.bias.data, adapting)
    )


def _weight(child: Any) -> Tensor:
    weight: Tensor = child.weight.data
    return weight.T if isinstance(child, Conv1D) else weight
