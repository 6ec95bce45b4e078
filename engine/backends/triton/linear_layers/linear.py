"""Makes linear layers for a GPU.

cuBLAS, through PyTorch, multiplies by unquantized weights; our own kernels compute quantized weights and experts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from msgspec import structs
from torch import Tensor

from contracts.kinds import Activations
from engine.backends.reference.linear import ReferenceLinears
from engine.backends.triton.linear_layers.adapted import TritonAdapted
from engine.backends.triton.linear_layers.adapter_rows import StepRows
from engine.backends.triton.linear_layers.experts import TritonExperts
from engine.backends.triton.linear_layers.quantized import QuantizedLinear, SideBySide, make_linear, packs, warm_up
from engine.model.config import ExpertsMLP
from engine.model.families.expert_tensors import ExpertTensors
from engine.model.layers.adapted import Adapting
from engine.model.layers.linear import Linear, LinearWeights
from engine.model.quantized import Form, Weight
from engine.parallel.shard import length


class TritonLinears(ReferenceLinears):
    forms: frozenset[Form] = frozenset({"int4", "int8", "fp8"})

    def __init__(self, device: torch.device, dtype: torch.dtype, activations: Activations = "auto") -> None:
        super().__init__(device, dtype)
        self._activations = activations
        self._rows: dict[Adapting, StepRows] = {}
        self._adapted: dict[tuple[int, ...], TritonAdapted] = {}  # one of each kind
        self._mixtures: dict[tuple[object, ...], TritonExperts] = {}  # one of each kind
        self._packed: dict[tuple[object, ...], QuantizedLinear | SideBySide] = {}  # the same

    def fused(self, weights: LinearWeights) -> Linear:
        """Makes a linear layer.

        Quantized weights stay quantized, with one launch for each kind among the layer's parts.
        """
        parts, adapting, plain = weights.parts, weights.adapting, replace(weights, adapting=None)
        linear = self._quantized(parts, weights.bias) if any(map(packs, parts)) else super().fused(plain)
        if adapting is None:
            return linear
        rows = self._rows.setdefault(adapting, StepRows(adapting, self._device))
        inputs, sizes = parts[0].shape[1], [len(part) for part in parts]
        adapted = TritonAdapted(linear, inputs, sizes, adapting, rows, self._device)
        self._adapted[adapted.variant] = adapted
        return adapted

    @property
    def adapts(self) -> bool:
        """Returns whether adapters can change a layer."""
        return bool(self._adapted)

    def _quantized(self, weights: Sequence[Weight], bias: Tensor | None) -> Linear:
        linear = make_linear(weights, bias, self._device, self._dtype, self._activations)
        self._packed[linear.variant] = linear
        return linear

    def experts(
        self, mlp: ExpertsMLP, hidden: int, tensors: Iterable[ExpertTensors], held: slice | None = None
    ) -> TritonExperts:
        if held is not None:
            mlp = structs.replace(mlp, experts=length(held))
        made = TritonExperts(mlp, hidden, self._device, self._dtype, tensors, self._activations)
        self._mixtures[mlp, hidden, made.variant] = made
        return made

    def warm_up(self) -> None:
        """Launches the kernels of every kind of packed weights, of experts, and of layers with adapters once."""
        for packed in self._packed.values():
            warm_up(packed, self._device, self._dtype)
        for mixture in self._mixtures.values():
            mixture.warm_up()
        for adapted in self._adapted.values():
            adapted.warm_up(self._dtype)
