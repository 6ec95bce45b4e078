"""Loads the weights of a mixture of experts."""

from dataclasses import dataclass
from typing import Generic

from torch import Tensor

from engine.model.config import DenseMLP, ExpertsMLP, ModelConfig
from engine.model.families.family import LayerNames
from engine.model.layers.dense import DenseWeights, load_dense
from engine.model.layers.linear import AnyLinear, Experts
from engine.model.layers.linear_factory import LinearFactory


@dataclass(frozen=True, slots=True)
class ExpertsWeights(Generic[AnyLinear]):
    """The weights of an `ExpertsMLP`.

    The router is fp32 on every backend: in bf16, rounding could swap experts with close scores.
    """

    router: Tensor  # fp32 [experts, hidden]
    router_bias: Tensor | None  # fp32 [experts]
    correction: Tensor | None  # fp32 [experts]
    experts: Experts
    shared: DenseWeights[AnyLinear] | None
    shared_gate: Tensor | None  # fp32 [1, hidden]

    def held(self) -> list[Tensor]:
        small = (self.router, self.router_bias, self.correction, self.shared_gate)
        shared = [] if self.shared is None else self.shared.held()
        return [*(tensor for tensor in small if tensor is not None), *self.experts.held(), *shared]


def load_experts(
    config: ModelConfig, mlp: ExpertsMLP, make: LinearFactory[AnyLinear], names: LayerNames
) -> ExpertsWeights[AnyLinear]:
    """Loads a layer's router and experts. Raises `ModelError` if a tensor is missing or has another shape."""
    hidden, count = config.hidden_size, (mlp.experts,)
    shared = None
    if mlp.shared:
        dense = DenseMLP(intermediate=mlp.shared, activation=mlp.activation)
        shared = load_dense(config, dense, make, names.shared_gate_up, names.shared_down)
    return ExpertsWeights(
        router=make.exact(f"{names.router}.weight", (mlp.experts, hidden)),
        router_bias=make.exact(f"{names.router}.bias", count) if mlp.router_bias else None,
        correction=make.exact(names.correction, count) if mlp.correction else None,
        experts=make.experts(mlp, hidden, names.prefix, names.read_expert, scale=config.residual_scale),
        shared=shared,
        shared_gate=make.exact(f"{names.shared_gate}.weight", (1, hidden)) if mlp.shared_gate else None,
    )
