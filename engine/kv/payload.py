"""Payloads, whose bytes arrive in frames of any sizes: their blocks, and copies of them into memory or a tensor."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contracts.errors import MessageError
from contracts.kv.spec import VALUE_BYTES, KVSpec, PayloadConversion
from engine.kv.codec import bytes_of
from infra.memory.unlocked_copy import copy_bytes

Payload = Sequence[memoryview | bytes]


def size_of(payload: Payload) -> int:
    return sum(memoryview(part).nbytes for part in payload)


def scatter(targets: Sequence[memoryview], parts: Payload) -> None:
    """Copies the concatenation of `parts` into the concatenation of `targets`; both have the same total size."""
    waiting: Any = iter(targets)
    target = next(waiting, None)
    for part in parts:
        rest = memoryview(part).cast("B")
        while rest.nbytes:
            assert target is not None
            count = min(rest.nbytes, target.nbytes)
            copy_bytes(target[:count], rest[:count])
            rest, target = rest[count:], target[count:]
            if not target.nbytes:
                target = next(waiting, None)


def tensor_over(payload: memoryview | bytes) -> Tensor:
    """Makes a read-only tensor, uint8 `[bytes]`, over the same memory; `payload` must outlive it.

    PyTorch warns of each read-only buffer, so it is given the address instead.
    """
    array = np.frombuffer(payload, dtype=np.uint8)
    if not array.size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * array.size).from_address(array.ctypes.data), dtype=torch.uint8)


def view_of(tensor: Tensor) -> memoryview:
    """Returns the bytes of a contiguous tensor on the host; the view keeps the tensor alive."""
    array: Any = tensor.numpy()
    return memoryview(array).cast("B")


def refuse_other_size(spec: KVSpec, group: int, blocks: int, payload: Payload) -> None:
    """Raises `MessageError` for a payload that is not of this number of the pool's blocks."""
    size, block_bytes = size_of(payload), spec.groups[group].block_bytes
    if size != blocks * block_bytes:
        raise MessageError(f"a payload of {size} bytes for {blocks} blocks of {block_bytes} bytes")


def blocks_of_payload(spec: KVSpec, piece: PayloadConversion, payload: Payload) -> int:
    """Returns the number of the sender's blocks in a payload. Raises `MessageError` as `KVPool.convert` does."""
    form, size = piece.form, size_of(payload)
    if form.dtype not in VALUE_BYTES or form.block_tokens < 1 or spec.quantized:
        raise MessageError(f"KV of {form.described()} cannot be converted to {spec.form().described()}")
    group = spec.groups[piece.group]
    block_bytes = bytes_of(form, group.vectors, group.width(spec.dtype), group.parts)
    if not size or size % block_bytes:
        raise MessageError(f"a payload of {size} bytes, which is not in blocks of {block_bytes} bytes")
    return size // block_bytes
