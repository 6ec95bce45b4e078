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
    def packed_kinds(self) -> frozenset[str]:
        """Returns the stored data types that `dequantize` reads."""
        ...

    def dequantize(self, stored: StoredTensors, name: str, shape: tuple[int, ...]) -> Tensor:
        """Dequantizes the tensor `name`, such as an embedding, that is stored as one of `packed_kinds`."""
        ...

    def weights_per_element(self, name: str, kind: str) -> tuple[Form | None, int]:
        """Returns the quantization format (None: floats) of a tensor, and the weights that one stored element has.

        Elements of auxiliary tensors, such as scales, have 0 weights.
        """
        ...

    def is_irrelevant(self, stored: StoredTensors, name: str) -> bool:
        """Returns whether the unread tensor `name` does not affect results."""
        ...

    def settings(self) -> bytes:
        """Returns the settings that decide how tensors are read, for the digest of the weights."""
        ...


class FloatFormat:
    """Reads floats: bf16, fp16 or fp32. Base of the other formats, which may leave layers unquantized."""

    packed_kinds: frozenset[str] = frozenset()

    def dequantize(self, stored: StoredTensors, name: str, shape: tuple[int, ...]) -> Tensor:
        raise AssertionError(name)

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        return stored.tensor(f"{name}.weight", shape)

    def weights_per_element(self, name: str, kind: str) -> tuple[Form | None, int]:
        return None, 1

    def is_irrelevant(self, stored: StoredTensors, name: str) -> bool:
        return False

    def settings(self) -> bytes:
        return b""
