"""Computes a mixture of experts by Triton kernels: four launches for all experts, and no wait for what was chosen."""

import torch
from torch import Tensor

from engine.model.config import Activation, ExpertsMLP
from engine.model.families.expert_tensors import ExpertTensors
from engine.model.quantized import dequantized
from kernels.expert_products import Expert, row_counts
from kernels.experts import experts
from kernels.route import Routing


class TritonExperts:
    """See `engine.model.linear.Experts`. The weights of all experts lie in one piece, as the kernels take them."""

    def __init__(self, mlp: ExpertsMLP, hidden: int, device: torch.device, dtype: torch.dtype) -> None:
        self._activation: Activation = mlp.activation
        self._used = mlp.used
        self._gate_up = _empty(mlp, 2 * mlp.intermediate, hidden, device, dtype)
        self._down = _empty(mlp, hidden, mlp.intermediate, device, dtype)

    def take(self, expert: int, tensors: ExpertTensors) -> None:
        """Copies one expert's tensors to their place, and converts them on the way."""
        begin = 0
        for part in tensors.gate_up:
            self._gate_up.weight[expert, begin : begin + len(part)] = dequantized(part)
            begin += len(part)
        self._down.weight[expert] = dequantized(tensors.down)
        for product, bias in ((self._gate_up, tensors.gate_up_bias), (self._down, tensors.down_bias)):
            if product.bias is not None and bias is not None:
                product.bias[expert] = bias

    def __call__(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        return experts(x, chosen, shares, self._gate_up, self._down, self._activation)

    def warm_up(self) -> None:
        """Launches each variant of the kernels once."""
        weight = self._gate_up.weight
        x = weight.new_zeros((1, weight.shape[2]))
        chosen = torch.arange(self._used, dtype=torch.int32, device=x.device)[None]
        for rows in row_counts(x.dtype):
            experts(x, chosen, chosen.float(), self._gate_up, self._down, self._activation, rows=rows)

    def held(self) -> list[Tensor]:
        """Returns the weights and biases of all experts."""
        return [tensor for product in (self._gate_up, self._down) for tensor in product if tensor is not None]


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


def _empty(mlp: ExpertsMLP, outputs: int, inputs: int, device: torch.device, dtype: torch.dtype) -> Expert:
    """Allocates one product of all experts."""
    weight = torch.empty((mlp.experts, outputs, inputs), dtype=dtype, device=device)
    return Expert(weight, weight.new_empty(weight.shape[:2]) if mlp.bias else None)
