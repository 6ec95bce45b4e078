"""Says where a checkpoint keeps the tensors of an expert; a family with a layout of its own has a reader of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.model.config import ExpertsMLP
from engine.model.quantized import Weight


class CheckpointTensors(Protocol):
    """Gives a checkpoint's tensors by name. Raises `ModelError` for one that is missing or of another shape."""

    def holds(self, name: str) -> bool:
        """Tells whether there is such a tensor."""
        ...

    def weight(self, name: str, shape: tuple[int, int]) -> Weight:
        """Returns the weight `[out, in]` of the linear layer `name`, as the checkpoint's format has it."""
        ...

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Returns a tensor in the file's own format."""
        ...

    def part(self, name: str, shape: tuple[int, ...], index: int, *, packed: bool = False) -> Tensor:
        """Returns `tensor(name, shape)[index]`, and reads no more of the file than that. Who asks may unpack bytes."""
        ...


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """Holds one expert's products, whose weights are `[out, in]`."""

    gate_up: tuple[Weight, ...]  # [2 x intermediate, hidden], perhaps in several tensors, one below the other
    down: Weight  # [hidden, intermediate]
    gate_up_bias: Tensor | None = None  # [2 x intermediate]
    down_bias: Tensor | None = None  # [hidden]


ReadExpert = Callable[[CheckpointTensors, str, ExpertsMLP, int, int], ExpertTensors]
"""Reads one expert: takes the checkpoint, the layer's prefix, the MLP, the model's hidden size and the expert's number.

It is called for one expert after the other, so that no more than one is in memory in the checkpoint's layout.
"""


@dataclass(frozen=True, slots=True)
class NamedExperts:
    """Reads experts without biases, each of which has three tensors of its own, as most families have them."""

    gate: str = "mlp.experts.{}.gate_proj"
    up: str = "mlp.experts.{}.up_proj"
    down: str = "mlp.experts.{}.down_proj"

    def __call__(
        self, tensors: CheckpointTensors, prefix: str, mlp: ExpertsMLP, hidden: int, expert: int
    ) -> ExpertTensors:
        """See `ReadExpert`."""
        gate, up, down = (f"{prefix}.{name.format(expert)}" for name in (self.gate, self.up, self.down))
        shape = (mlp.intermediate, hidden)
        return ExpertTensors(
            (tensors.weight(gate, shape), tensors.weight(up, shape)), tensors.weight(down, (hidden, mlp.intermediate))
        )
