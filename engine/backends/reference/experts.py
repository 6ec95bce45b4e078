"""Computes a mixture of experts with PyTorch operators, one expert after the other."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.backends.reference.elementwise import gated
from engine.model.config import Activation
from engine.model.layers.linear import Linear


class ReferenceExperts:
    """See `engine.model.layers.linear.Experts`. The host waits for the number of rows that each expert has."""

    def __init__(self, experts: Sequence[tuple[Linear, Linear]], activation: Activation) -> None:
        self._experts = experts
        self._activation = activation

    def __call__(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        used, total = chosen.shape[1], torch.zeros_like(x, dtype=torch.float32)
        order = chosen.flatten().sort(stable=True).indices
        counts = chosen.flatten().bincount(minlength=len(self._experts) + 1).tolist()
        *by_expert, _ = order.split(counts)  # the last pairs are of other ranks' experts
        for (gate_up, down), places in zip(self._experts, by_expert, strict=True):
            if len(places):
                rows = places // used
                given = down(gated(gate_up(x[rows]), self._activation))
                total.index_add_(0, rows, given.float() * shares.flatten()[places, None])
        return total.to(x.dtype)

    def held(self) -> list[Tensor]:
        return [tensor for expert in self._experts for linear in expert for tensor in linear.held()]
