"""Loads the weights of a dense MLP."""

from dataclasses import dataclass
from typing import Generic

from torch import Tensor

from engine.model.config import DenseMLP, ModelConfig
from engine.model.layers.linear import AnyLinear
from engine.model.layers.linear_factory import LinearFactory


@dataclass(frozen=True, slots=True)
class DenseWeights(Generic[AnyLinear]):
    """The weights of a `DenseMLP`; gate and up are one linear layer."""

    gate_up: AnyLinear
    down: AnyLinear

    def held(self) -> list[Tensor]:
        return [*self.gate_up.held(), *self.down.held()]


def load_dense(
    config: ModelConfig,
    mlp: DenseMLP,
    make: LinearFactory[AnyLinear],
    gate_up: tuple[str, ...],
    down: str,
    adaptable: bool = False,
) -> DenseWeights[AnyLinear]:
    """Loads the tensors with these names; `adaptable` allows adapters.

    Raises `ModelError` if a tensor is missing or has another shape.
    """
    hidden, width, scale = config.hidden_size, mlp.intermediate, config.residual_scale
    own = make.group.shard.part(width)
    return DenseWeights(
        gate_up=make.linear(gate_up, [width] * 2, hidden, mlp.bias, adaptable=adaptable, held=[own, own]),
        down=make.row_parallel(down, hidden, width, width, mlp.bias, scale=scale, adaptable=adaptable),
    )
