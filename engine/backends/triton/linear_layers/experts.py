"""Computes a mixture of experts by Triton kernels: four launches for all experts, without waiting for the routing."""

from collections.abc import Iterable

import torch
from torch import Tensor

from contracts.kinds import Activations
from engine.backends.triton.linear_layers.packed_experts import Gathering
from engine.model.config import Activation, ExpertsMLP
from engine.model.families.expert_tensors import ExpertTensors
from kernels.moe.expert_products import row_counts
from kernels.moe.experts import experts
from kernels.moe.packed_products import PackedExpert
from kernels.moe.route import Routing
from kernels.quantized.product import MAX_SPLIT_K_ROWS


class TritonExperts:
    """See `engine.model.layers.linear.Experts`. The weights of all experts lie in one piece, as kernels take them."""

    def __init__(
        self,
        mlp: ExpertsMLP,
        hidden: int,
        device: torch.device,
        dtype: torch.dtype,
        tensors: Iterable[ExpertTensors],
        activations: Activations = "auto",
    ) -> None:
        """Takes the tensors of one expert after the other, so that there is never a second copy of all experts.

        `activations` decides whether large batches are quantized, as in `make_linear`.
        """
        self._activation: Activation = mlp.activation
        self._used, self._hidden, self._device, self._dtype = mlp.used, hidden, device, dtype
        gate_up = Gathering(mlp.experts, (2 * mlp.intermediate, hidden), mlp.bias, device, dtype, activations)
        down = Gathering(mlp.experts, (hidden, mlp.intermediate), mlp.bias, device, dtype, activations)
        for expert, each in enumerate(tensors):
            gate_up.take(expert, each.gate_up, each.gate_up_bias)
            down.take(expert, [each.down], each.down_bias)
        self._gate_up, self._down = gate_up.product(), down.product()

    def __call__(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        return experts(x, chosen, shares, self._gate_up, self._down, self._activation)

    @property
    def variant(self) -> tuple[object, ...]:
        """Returns the key of compiled kernels, besides the layer's kind: the quantization of its weights."""
        return tuple(
            (each.weight.name, each.weight.by_block, each.form, *(tensor.dtype for tensor in each.weight.tensors()))
            if isinstance(each, PackedExpert)
            else ()
            for each in (self._gate_up, self._down)
        )

    def warm_up(self) -> None:
        """Launches each variant of the kernels once."""
        quantizing = any(isinstance(each, PackedExpert) and each.form for each in (self._gate_up, self._down))
        for tokens in (1, MAX_SPLIT_K_ROWS + 1) if quantizing else (1,):
            x = torch.zeros((tokens, self._hidden), dtype=self._dtype, device=self._device)
            chosen = torch.arange(self._used, dtype=torch.int32, device=x.device).repeat(tokens, 1)
            for rows in row_counts(x.dtype):
                experts(x, chosen, chosen.float(), self._gate_up, self._down, self._activation, rows=rows)

    def held(self) -> list[Tensor]:
        """Returns the weights and biases of all experts."""
        held: list[Tensor] = []
        for each in (self._gate_up, self._down):
            held += each.weight.tensors() if isinstance(each, PackedExpert) else [each.weight]
            held += [] if each.bias is None else [each.bias]
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
