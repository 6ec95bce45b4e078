"""Encodes and decodes KV blocks by PyTorch's operators on a CPU: the reference of the native ones.

The engine's thread alone may share operators out among threads, and this is called by another. So everything is done in
pieces that PyTorch works through on the thread that calls, and without the operators that it shares out much sooner:
rounding, and all that take an index.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from core.config import Codec
from core.kv.spec import SCALE_BYTES
from engine.device import DTYPES
from engine.kv.codec import Landing

CODECS = {"fp8": (torch.float8_e4m3fn, 448.0), "int8": (torch.int8, 127.0)}
"""What values become, and its largest number."""
ALONE = (1 << 15) - 1
"""Elements that are not shared out: fewer than `at::internal::GRAIN_SIZE` in PyTorch's sources."""
ROUND = 1.5 * 2.0**23
"""Added to a number below 2^22 and taken away again, it leaves the nearest integer, and the even one of two."""


class ReferenceCodec:
    """See `engine.kv.codec.BlockCodec`."""

    @torch.inference_mode()
    def encode(self, layer: Tensor, blocks: Tensor, codec: Codec) -> Tensor:
        pool = layer.flatten(2)  # [blocks, vectors, values]
        _, vectors, size = pool.shape
        result = torch.empty((len(blocks), vectors * (SCALE_BYTES + size)), dtype=torch.uint8)
        for row, block in zip(result, blocks.tolist(), strict=True):
            scale_row = row[: vectors * SCALE_BYTES].view(vectors, SCALE_BYTES)
            value_row = row[vectors * SCALE_BYTES :].view(vectors, size)
            for part in _parts(vectors, size):
                scales, values = encoded(pool[block, part], codec)
                scale_row[part] = scales[:, None].view(torch.uint8)
                value_row[part] = values.view(torch.uint8)
        return result

    @torch.inference_mode()
    def decode(self, payload: Tensor, landing: Landing, layer: Tensor) -> None:
        _, vectors, block_tokens, width = layer.shape
        scales, values = taken_apart(payload, landing, vectors)
        for token, count in _runs(landing, block_tokens):
            source, away = divmod(token - landing.first, landing.form.block_tokens)
            block, there = divmod(token, block_tokens)
            target = layer[landing.blocks[block]]
            for part in _parts(vectors, count * width):
                found = values[source, part, away : away + count].view(dtype_of(landing))
                if scales is not None:
                    found = found.float() * scales[source, part].view(torch.float32)[..., None]
                target[part, there : there + count] = found.to(layer.dtype)


def encoded(found: Tensor, codec: Codec) -> tuple[Tensor, Tensor]:
    """Encodes `[…, vectors, values]` as fp32 scales `[…, vectors]` and values: to the bit as `kernels.block_copy`."""
    dtype, largest = CODECS[codec]
    found = found.float()
    found = torch.where(found.isfinite(), found, 0.0)
    highest = found.abs().amax(-1)
    # By a tensor: on a GPU torch divides by a number by multiplying with its inverse.
    scales = (highest / torch.full_like(highest, largest)).clamp(min=torch.finfo(torch.float32).tiny)
    scaled = found * (1 / scales)[..., None]
    converted = ((scaled + ROUND) - ROUND if dtype == torch.int8 else scaled).to(dtype)
    return scales, torch.where(converted.float() == 0, 0.0, converted.float()).to(dtype)  # zeros have no sign


def taken_apart(payload: Tensor, landing: Landing, vectors: int) -> tuple[Tensor | None, Tensor]:
    """Returns the bytes of scales `[blocks, vectors, 4]`, if any, and values `[blocks, vectors, tokens, bytes]`."""
    scale_bytes = 0 if landing.form.codec == "none" else vectors * SCALE_BYTES
    values = payload[:, scale_bytes:].unflatten(1, (vectors, landing.form.block_tokens, -1))
    return payload[:, :scale_bytes].unflatten(1, (vectors, SCALE_BYTES)) if scale_bytes else None, values


def dtype_of(landing: Landing) -> torch.dtype:
    """Returns the format of a payload's values."""
    form = landing.form
    return DTYPES[form.dtype] if form.codec == "none" else CODECS[form.codec][0]


def _runs(landing: Landing, block_tokens: int) -> Iterator[tuple[int, int]]:
    """Finds runs, as (first, count), of tokens that are neighbours in the payload and in the pool."""
    token, theirs = landing.begin, landing.form.block_tokens
    while token < landing.end:
        count = min(theirs - (token - landing.first) % theirs, block_tokens - token % block_tokens, landing.end - token)
        yield token, count
        token += count


def _parts(vectors: int, size: int) -> Iterator[slice]:
    step = max(1, ALONE // size)
    return (slice(begin, begin + step) for begin in range(0, vectors, step))
