"""The interface of a checkpoint format: how the weight of a linear layer is stored."""

from typing import Protocol

from torch import Tensor

from engine.model.quantized import Form, Weight


class StoredTensors(Protocol):
    """A checkpoint's tensors by name. Raises `ModelError` if a tensor is missing or has another shape."""

    def holds(self, name: str) -> bool: ...

    def kind(self, name: str) -> str:
        """Returns the stored data type by safetensors' name: BF16, I32, U8, F8_E4M3, …."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Returns a tensor of floats, in the file's float format."""
        ...

    def packed(self, name: str, shape: tuple[int, ...], kind: str) -> Tensor:
        """Returns the raw tensor, which must be stored as `kind`."""
        ...


class WeightFormat(Protocol):
    """Reads weights of linear layers."""

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        """Reads the weight `[out, in]` of the linear layer `name`; layers that were not quantized are floats.

        Raises `ModelError` if a tensor is missing or has another shape than the config and `shape` say.
        """
        ...

    @property
    def packs(self) -> frozenset[str]:
        """Returns the stored data types that `numbers` dequantizes."""
        ...

    def numbers(self, stored: StoredTensors, name: str, shape: tuple[int, ...]) -> Tensor:
        """Dequantizes the tensor `name`, such as an embedding, that is stored as one of `packs`."""
        ...

    def stands_for(self, name: str, kind: str) -> tuple[Form | None, int]:
        """Returns the quantization format (None: floats) and the number of weights that one stored element has.

        Auxiliary tensors such as scales have 0 weights.
        """
        ...

    def may_stay(self, stored: StoredTensors, name: str) -> bool:
        """Returns whether the unread tensor `name` does not affect results."""
        ...

    def settings(self) -> bytes:
        """Returns the settings that decide how tensors are read, for the digest of the weights."""
        ...


class Plain:
    """Reads floats: bf16, fp16 or fp32. Base of the other formats, which may leave layers unquantized."""

    packs: frozenset[str] = frozenset()

    def numbers(self, stored: StoredTensors, name: str, shape: tuple[int, ...]) -> Tensor:
        raise AssertionError(name)

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        return stored.tensor(f"{name}.weight", shape)

    def stands_for(self, name: str, kind: str) -> tuple[Form | None, int]:
        return None, 1

    def may_stay(self, stored: StoredTensors, name: str) -> bool:
        return False

    def settings(self) -> bytes:
        return b""
