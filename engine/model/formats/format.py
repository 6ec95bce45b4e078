"""Says what a format of checkpoints is: how the weight of a linear layer is stored there."""

from typing import Protocol

from torch import Tensor

from engine.model.quantized import Weight


class StoredTensors(Protocol):
    """Gives a checkpoint's tensors by name. Raises `ModelError` for one that is missing or of another shape."""

    def holds(self, name: str) -> bool:
        """Tells whether there is such a tensor."""
        ...

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Returns a tensor of numbers in the file's own float format."""
        ...

    def packed(self, name: str, shape: tuple[int, ...], kind: str) -> Tensor:
        """Returns a tensor stored as `kind` (as safetensors calls it: I32, U8, F8_E4M3, …) for who can unpack it."""
        ...


class WeightFormat(Protocol):
    """Reads weights of linear layers."""

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        """Reads the weight `[out, in]` of the linear layer `name`. A layer that was left out is a tensor of numbers.

        Raises `ModelError` where a tensor is missing, or has another shape than the config and `shape` say.
        """
        ...


class Plain:
    """Reads a checkpoint of numbers: bf16, fp16 or fp32."""

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        """See `WeightFormat`."""
        return stored.tensor(f"{name}.weight", shape)
