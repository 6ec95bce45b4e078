"""Computes a mixture of experts by the native operator."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.backends.native.library import (
    ACTIVATION_CODES,
    DTYPE_CODES,
    ExpertsArguments,
    ExpertsBufferArguments,
    LinearArguments,
    RouterArguments,
)
from engine.backends.native.linear_layers.linear import NativeLinear
from engine.model.config import ExpertsMLP
from engine.model.layers.experts import ExpertsWeights
from engine.model.layers.tensor_parallel import ParallelExperts, RowParallelLinear

MAX_EXPERTS = 1024
"""Equal to MAX_EXPERTS in experts.h."""
SCORE_KINDS = ("softmax", "softmax_of_used", "sigmoid")
"""`enum scores` in experts.h."""


class NativeExperts:
    def __init__(
        self,
        native: ctypes.CDLL,
        mlp: ExpertsMLP,
        hidden: int,
        dtype: torch.dtype,
        experts: Sequence[tuple[NativeLinear, NativeLinear]],
        held: slice | None = None,
    ) -> None:
        """`held` are the numbers of these `experts` among the mixture's, if other ranks have the others."""
        self._native = native
        self._dtype = dtype
        self._mlp = mlp
        self._experts = experts  # keeps the weights alive
        products = LinearArguments * len(experts)
        self._first = 0 if held is None else held.start
        self._gate_up = products(*(gate_up.arguments for gate_up, _ in experts))
        self._down = products(*(down.arguments for _, down in experts))
        self.arguments = ExpertsArguments(
            router=router_arguments(mlp),
            format=DTYPE_CODES[dtype],
            hidden=hidden,
            activation=ACTIVATION_CODES[mlp.activation],
            first=self._first,
            own=len(experts),
            partial=held is not None,
            gate_up=ctypes.addressof(self._gate_up),
            down=ctypes.addressof(self._down),
        )

    def __call__(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Returns fp32, without rounding, if other ranks have some of the experts."""
        assert x.is_contiguous() and chosen.is_contiguous() and shares.is_contiguous() and x.dtype == self._dtype
        buffers = ExpertsBuffers(len(x), [self._mlp], x.shape[1], self._dtype)
        numbers = chosen + self._first
        buffers.arguments.chosen, buffers.arguments.shares = numbers.data_ptr(), shares.data_ptr()
        change = torch.empty_like(x, dtype=torch.float32 if self.arguments.partial else None)
        self._native.baton_mix(self.arguments, buffers.arguments, x.data_ptr(), len(x), change.data_ptr())
        return change

    def held(self) -> list[Tensor]:
        return [tensor for expert in self._experts for linear in expert for tensor in linear.held()]


class ExpertsBuffers:
    """Buffers between the operators of a mixture of experts, for up to `tokens` tokens of layers like `mlps`."""

    def __init__(self, tokens: int, mlps: Sequence[ExpertsMLP], hidden: int, dtype: torch.dtype) -> None:
        used, shared = max(mlp.used for mlp in mlps), max(mlp.shared for mlp in mlps)
        width, pairs = max(mlp.used * mlp.intermediate for mlp in mlps), tokens * used
        self._tensors = {
            "logits": torch.empty(tokens * max(mlp.experts for mlp in mlps)),
            "chosen": torch.empty(pairs, dtype=torch.int32),
            "slots": torch.empty(pairs, dtype=torch.int32),
            "shares": torch.empty(pairs),
            "shared_shares": torch.empty(tokens),
            "x": torch.empty(pairs * hidden, dtype=dtype),
            "y": torch.empty(pairs * hidden, dtype=dtype),
            "gate_up": torch.empty(2 * tokens * width, dtype=dtype),
            "gated": torch.empty(tokens * width, dtype=dtype),
            "shared_gate_up": torch.empty(2 * tokens * shared, dtype=dtype),
            "shared_gated": torch.empty(tokens * shared, dtype=dtype),
            "shared_y": torch.empty(tokens * hidden if shared else 0, dtype=dtype),
        }
        self.arguments = ExpertsBufferArguments(**{name: tensor.data_ptr() for name, tensor in self._tensors.items()})


def router_arguments(mlp: ExpertsMLP) -> RouterArguments:
    return RouterArguments(
        experts=mlp.experts,
        used=mlp.used,
        scores=SCORE_KINDS.index(mlp.scores),
        normalized=mlp.normalized,
        groups=mlp.groups,
        groups_used=mlp.groups_used,
        best_two=mlp.group_score == "best_two",
        scale=mlp.scale,
    )


def local_linear(linear: NativeLinear | RowParallelLinear) -> NativeLinear:
    """Returns the layer with this rank's inputs."""
    local = linear.local if isinstance(linear, RowParallelLinear) else linear
    assert isinstance(local, NativeLinear)
    return local


def layer_arguments(weights: ExpertsWeights[NativeLinear]) -> ExpertsArguments:
    """Returns the arguments of a layer's experts with their router and the shared expert."""
    own = weights.experts.local if isinstance(weights.experts, ParallelExperts) else weights.experts
    assert isinstance(own, NativeExperts)
    arguments = ExpertsArguments.from_buffer_copy(own.arguments)
    arguments.weight = weights.router.data_ptr()
    arguments.bias = None if weights.router_bias is None else weights.router_bias.data_ptr()
    arguments.router.correction = None if weights.correction is None else weights.correction.data_ptr()
    if weights.shared is not None:
        arguments.shared_gate_up = ctypes.addressof(weights.shared.gate_up.arguments)
        arguments.shared_down = ctypes.addressof(local_linear(weights.shared.down).arguments)
        arguments.shared_gate = None if weights.shared_gate is None else weights.shared_gate.data_ptr()
    return arguments
