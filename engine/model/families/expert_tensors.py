"""Where a checkpoint stores the tensors of an expert; a family with an unusual layout has a reader of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.model.config import ExpertsMLP
from engine.model.quantized import Weight


class CheckpointTensors(Protocol):
    """A checkpoint's tensors by name. Raises `ModelError` if a tensor is missing or has another shape."""

    def holds(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def weight(self, name: str, shape: tuple[int, int]) -> Weight:
        """Returns the weight `[out, in]` of the linear layer `name`, as the checkpoint's format has it."""
        ...

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Returns a tensor in the file's own format."""
        ...

    def part(self, name: str, shape: tuple[int, ...], index: int, *, packed: bool = False) -> Tensor:
        """Returns `tensor(name, shape)[index]` without reading the rest; `packed` allows uint8 tensors."""
        ...


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """One expert's weights, `[out, in]` each."""

    gate_up: tuple[Weight, ...]  # [2 x intermediate, hidden], in one or two tensors, stacked by outputs
    down: Weight  # [hidden, intermediate]
    gate_up_bias: Tensor | None = None  # [2 x intermediate]
    down_bias: Tensor | None = None  # [hidden]


ReadExpert = Callable[[CheckpointTensors, str, ExpertsMLP, int, int], ExpertTensors]
"""Reads one expert, given the checkpoint, the layer's prefix, the MLP, the hidden size and the expert's index.

Experts are read one by one, so that only one is in memory in the checkpoint's layout.
"""


@dataclass(frozen=True, slots=True)
class NamedExperts:
    """Reads experts with three tensors each and no biases, the layout of most families."""

    gate: str = "mlp.experts.{}.gate_proj"
    up: str = "mlp.experts.{}.up_proj"
    down: str = "mlp.experts.{}.down_proj"

    def __call__(
        self, tensors: CheckpointTensors, prefix: str, mlp: ExpertsMLP, hidden: int, expert: int
    ) -> ExpertTensors:
        gate, up, down = (f"{prefix}.{name.format(expert)}" for name in (self.gate, self.up, self.down))
        shape = (mlp.intermediate, hidden)
        return ExpertTensors(
            (tensors.weight(gate, shape), tensors.weight(up, shape)), tensors.weight(down, (hidden, mlp.intermediate))
        )


def stacked_experts(
    tensors: CheckpointTensors, prefix: str, mlp: ExpertsMLP, hidden: int, expert: int
) -> ExpertTensors:
    """Reads an expert from tensors of all experts of a layer, `[experts, out, in]` or `[experts, in, out]`.

    The published checkpoints have the second shape, and transformers writes the first; it is taken if both fit.
    """

    def weight(name: str, outputs: int, inputs: int) -> Tensor:
        whole, shape = f"{prefix}.mlp.experts.{name}", (mlp.experts, outputs, inputs)
        if tensors.shape(whole) == shape:
            return tensors.part(whole, shape, expert)
        return tensors.part(whole, (mlp.experts, inputs, outputs), expert).t()

    return ExpertTensors(
        (weight("gate_up_proj", 2 * mlp.intermediate, hidden),), weight("down_proj", hidden, mlp.intermediate)
    )
