"""Makes linear layers for a GPU: those of PyTorch, whose products cuBLAS computes, and experts of our own kernels."""

from collections.abc import Iterable

import torch

from engine.backends.reference.linear import ReferenceLinears
from engine.backends.triton.experts import TritonExperts
from engine.model.config import ExpertsMLP
from engine.model.families.expert_tensors import ExpertTensors


class TritonLinears(ReferenceLinears):
    """See `engine.model.linear.Linears`."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self._mixtures: dict[tuple[ExpertsMLP, int], TritonExperts] = {}  # one of each kind

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
