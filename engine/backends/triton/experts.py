"""Computes a mixture of experts by Triton kernels: four launches for all experts, without waiting for the routing."""

from collections.abc import Iterable

import torch
from torch import Tensor

from engine.backends.triton.packed_experts import Gathering
from engine.model.config import Activation, ExpertsMLP
from engine.model.families.expert_tensors import ExpertTensors
from kernels.moe.expert_products import row_counts
from kernels.moe.experts import experts
from kernels.moe.route import Routing
from kernels.quantized.packed import PackedWeight


class TritonExperts:
    """See `engine.model.linear.Experts`. The weights of all experts lie in one piece, as the kernels take them."""

    def __init__(
        self,
        mlp: ExpertsMLP,
        hidden: int,
        device: torch.device,
        dtype: torch.dtype,
        tensors: Iterable[ExpertTensors],
    ) -> None:
        """Takes the tensors of one expert after the other, so that there is never a second copy of all experts."""
        self._activation: Activation = mlp.activation
        self._used, self._hidden, self._device, self._dtype = mlp.used, hidden, device, dtype
        gate_up = Gathering(mlp.experts, (2 * mlp.intermediate, hidden), mlp.bias, device, dtype)
        down = Gathering(mlp.experts, (hidden, mlp.intermediate), mlp.bias, device, dtype)
        for expert, each in enumerate(tensors):
            gate_up.take(expert, each.gate_up, each.gate_up_bias)
            down.take(expert, [each.down], each.down_bias)
        self._gate_up, self._down = gate_up.product(), down.product()

    def __call__(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        return experts(x, chosen, shares, self._gate_up, self._down, self._activation)

    @property
    def variant(self) -> tuple[object, ...]:
        """Returns the key of compiled kernels, besides the layer's kind: the quantization of its weights."""
        products = (self._gate_up.weight, self._down.weight)
        return tuple(
            (each.name, *(tensor.dtype for tensor in each.tensors())) if isinstance(each, PackedWeight) else ()
            for each in products
        )

    def warm_up(self) -> None:
        """Launches each variant of the kernels once."""
        x = torch.zeros((1, self._hidden), dtype=self._dtype, device=self._device)
        chosen = torch.arange(self._used, dtype=torch.int32, device=x.device)[None]
        for rows in row_counts(x.dtype):
            experts(x, chosen, chosen.float(), self._gate_up, self._down, self._activation, rows=rows)

    def held(self) -> list[Tensor]:
        """Returns the weights and biases of all experts."""
        held: list[Tensor] = []
        for weight, bias in (self._gate_up, self._down):
            held += weight.tensors() if isinstance(weight, PackedWeight) else [weight]
            held += [] if bias is None else [bias]
        return held


def routing_of(mlp: ExpertsMLP) -> Routing:
    """Returns how a layer chooses experts, as the kernel takes it."""
    return Routing(
        used=mlp.used,
        scores=mlp.scores,
        normalized=mlp.normalized,
        scale=mlp.scale,
        groups=mlp.groups,
        groups_used=mlp.groups_used,
        best_two=mlp.group_score == "best_two",
    )
