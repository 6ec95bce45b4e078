"""Makes linear layers for a GPU: those of PyTorch, whose products cuBLAS computes, and experts of our own kernels."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from engine.backends.reference.linear import ReferenceLinears
from engine.backends.triton.adapted import TritonAdapted
from engine.backends.triton.experts import TritonExperts
from engine.model.adapted import Adapting
from engine.model.config import ExpertsMLP
from engine.model.families.expert_tensors import ExpertTensors
from engine.model.linear import Linear
from engine.model.quantized import Weight


class TritonLinears(ReferenceLinears):
    """See `engine.model.linear.Linears`."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self.adapts = False  # whether adapters can change a layer
        self._mixtures: dict[tuple[ExpertsMLP, int], TritonExperts] = {}  # one of each kind

    def fused(self, weights: Sequence[Weight], bias: Tensor | None, adapting: Adapting | None = None) -> Linear:
        """Makes layers that recorded steps adapt by kernels of ours, and others by products of each adapter's rows."""
        linear = super().fused(weights, bias)
        if adapting is None:
            return linear
        self.adapts = True
        return TritonAdapted(linear, adapting, self._device)

    def experts(self, mlp: ExpertsMLP, hidden: int, tensors: Iterable[ExpertTensors]) -> TritonExperts:
        made = TritonExperts(mlp, hidden, self._device, self._dtype)
        for expert, each in enumerate(tensors):
            made.take(expert, each)
        self._mixtures[mlp, hidden] = made
        return made

    def warm_up(self) -> None:
        """Launches the kernels of every kind of experts once."""
        for mixture in self._mixtures.values():
            mixture.warm_up()
