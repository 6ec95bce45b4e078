"""Says what a format of checkpoints is: how the weight of a linear layer is stored there."""

from typing import Protocol

from torch import Tensor

from engine.model.quantized import Form, Weight


class StoredTensors(Protocol):
    """Gives a checkpoint's tensors by name. Raises `ModelError` for one that is missing or of another shape."""

    def holds(self, name: str) -> bool:
        """Tells whether there is such a tensor."""
        ...

    def kind(self, name: str) -> str:
        """Returns what numbers a tensor is stored as, in safetensors' words: BF16, I32, U8, F8_E4M3, …."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape that a tensor is stored in."""
        ...

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Returns a tensor of numbers in the file's own float format."""
        ...

    def packed(self, name: str, shape: tuple[int, ...], kind: str) -> Tensor:
        """Returns a tensor stored as `kind`, for who can unpack it."""
        ...


class WeightFormat(Protocol):
    """Reads weights of linear layers."""

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        """Reads the weight `[out, in]` of the linear layer `name`. A layer that was left out is a tensor of numbers.

        Raises `ModelError` where a tensor is missing, or has another shape than the config and `shape` say.
        """
        ...

    @property
    def packs(self) -> frozenset[str]:
        """Returns the kinds of stored tensors that `numbers` unpacks."""
        ...

    def numbers(self, stored: StoredTensors, name: str, shape: tuple[int, ...]) -> Tensor:
        """Returns the numbers of the tensor `name`, such as an embedding, which is stored as one of `packs`."""
        ...

    def stands_for(self, name: str, kind: str) -> tuple[Form | None, int]:
        """Returns what a stored number of the tensor `name` becomes: so many weights, in a form or as numbers (None).

        What only says how others are read, such as scales, stands for none.
        """
        ...

    def may_stay(self, stored: StoredTensors, name: str) -> bool:
        """Tells whether the tensor `name`, which nobody has asked for, changes nothing of what is computed."""
        ...

    def settings(self) -> bytes:
        """Returns what beside the tensors decides which weights are read; it enters the digest."""
        ...


class Plain:
    """Reads a checkpoint of numbers: bf16, fp16 or fp32. Other formats are made from it: they may leave layers out."""

    packs: frozenset[str] = frozenset()

    def numbers(self, stored: StoredTensors, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `WeightFormat`: nothing is packed."""
        raise AssertionError(name)

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        """See `WeightFormat`."""
        return stored.tensor(f"{name}.weight", shape)

    def stands_for(self, name: str, kind: str) -> tuple[Form | None, int]:
        """See `WeightFormat`."""
        return None, 1

    def may_stay(self, stored: StoredTensors, name: str) -> bool:
        """See `WeightFormat`."""
        return False

    def settings(self) -> bytes:
        """See `WeightFormat`."""
        return b""
