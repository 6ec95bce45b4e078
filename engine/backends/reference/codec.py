"""Encodes and decodes KV blocks with PyTorch operators on a CPU: the reference of the native codec.

Only the engine's thread may run multithreaded operators, and another thread calls this code. Blocks are therefore
processed in pieces small enough for PyTorch to stay on the calling thread, and without operators that become
multithreaded for much smaller sizes: rounding, and indexing.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from contracts.kinds import Codec
from contracts.kv.spec import SCALE_BYTES
from engine.device import DTYPES_BY_NAME
from engine.kv.codec import Landing

CODEC_FORMATS = {"fp8": (torch.float8_e4m3fn, 448.0), "int8": (torch.int8, 127.0)}
"""Dtype and largest value of each codec."""
MAX_SERIAL_ELEMENTS = (1 << 15) - 1
"""Maximum elements that PyTorch processes on one thread (below `at::internal::GRAIN_SIZE`)."""
ROUND_TO_INTEGER = 1.5 * 2.0**23
"""Adding and subtracting it rounds a value below 2^22 to the nearest integer, ties to even."""


class ReferenceCodec:
    @torch.inference_mode()
    def encode(self, layer: Tensor, blocks: Tensor, codec: Codec, parts: Sequence[int] = ()) -> Tensor:
        _, vectors, block_tokens, width = layer.shape
        size, scale_bytes = block_tokens * width, max(1, len(parts)) * SCALE_BYTES  # of a vector
        result = torch.empty((len(blocks), vectors * (scale_bytes + size)), dtype=torch.uint8)
        for row, block in zip(result, blocks.tolist(), strict=True):
            scale_row = row[: vectors * scale_bytes].view(vectors, scale_bytes)
            value_row = row[vectors * scale_bytes :].view(vectors, block_tokens, width)
            for some in _some_vectors(vectors, size):
                scales, values = encoded(layer[block, some], codec, parts)
                scale_row[some] = scales.view(torch.uint8)
                value_row[some] = values.view(torch.uint8)
        return result

    @torch.inference_mode()
    def decode(self, payload: Tensor, landing: Landing, layer: Tensor, parts: Sequence[int] = ()) -> None:
        _, vectors, block_tokens, width = layer.shape
        scales, values = taken_apart(payload, landing, vectors, parts)
        for token, count in _runs(landing, block_tokens):
            source, source_offset = divmod(token - landing.first, landing.form.block_tokens)
            block, offset = divmod(token, block_tokens)
            target = layer[landing.blocks[block]]
            for some in _some_vectors(vectors, count * width):
                decoded = values[source, some, source_offset : source_offset + count].view(dtype_of(landing))
                if scales is not None:
                    decoded = scaled(decoded, scales[source, some].view(torch.float32)[:, None], parts)
                target[some, offset : offset + count] = decoded.to(layer.dtype)


def encoded(x: Tensor, codec: Codec, parts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Encodes `[…, vectors, tokens, width]` as fp32 scales `[…, vectors, parts]` and values of the same shape.

    The result equals that of `kernels.block_copy` to the bit.
    """
    pairs = [_encoded_part(part, codec) for part in x.split(list(parts) or x.shape[-1], -1)]
    values = torch.cat([values.view(torch.uint8) for _, values in pairs], -1)
    return torch.stack([scale for scale, _ in pairs], -1), values.view(CODEC_FORMATS[codec][0])


def _encoded_part(x: Tensor, codec: Codec) -> tuple[Tensor, Tensor]:
    dtype, largest = CODEC_FORMATS[codec]
    x = x.float()
    x = torch.where(x.isfinite(), x, 0.0)
    highest = x.abs().flatten(-2).amax(-1)
    # By a tensor: on a GPU torch divides by a number by multiplying with its inverse.
    scales = (highest / torch.full_like(highest, largest)).clamp(min=torch.finfo(torch.float32).tiny)
    quotients = x * (1 / scales)[..., None, None]
    converted = ((quotients + ROUND_TO_INTEGER) - ROUND_TO_INTEGER if dtype == torch.int8 else quotients).to(dtype)
    return scales, torch.where(converted.float() == 0, 0.0, converted.float()).to(dtype)  # zeros have no sign


def scaled(values: Tensor, scales: Tensor, parts: Sequence[int]) -> Tensor:
    """Multiplies `[…, width]` by the fp32 scales `[…, parts]` of its parts."""
    split = values.float().split(list(parts) or values.shape[-1], -1)
    return torch.cat([part * scale[..., None] for part, scale in zip(split, scales.unbind(-1), strict=True)], -1)


def taken_apart(payload: Tensor, landing: Landing, vectors: int, parts: Sequence[int]) -> tuple[Tensor | None, Tensor]:
    """Returns the bytes of scales `[blocks, vectors, 4 parts]`, if any, and of values.

    Values are `[blocks, vectors, tokens, bytes]`.
    """
    scale_bytes = 0 if landing.form.codec == "none" else vectors * max(1, len(parts)) * SCALE_BYTES
    values = payload[:, scale_bytes:].unflatten(1, (vectors, landing.form.block_tokens, -1))
    return payload[:, :scale_bytes].unflatten(1, (vectors, -1)) if scale_bytes else None, values


def dtype_of(landing: Landing) -> torch.dtype:
    form = landing.form
    return DTYPES_BY_NAME[form.dtype] if form.codec == "none" else CODEC_FORMATS[form.codec][0]


def _runs(landing: Landing, block_tokens: int) -> Iterator[tuple[int, int]]:
    token, theirs = landing.begin, landing.form.block_tokens
    while token < landing.end:
        count = min(theirs - (token - landing.first) % theirs, block_tokens - token % block_tokens, landing.end - token)
        yield token, count
        token += count


def _some_vectors(vectors: int, size: int) -> Iterator[slice]:
    step = max(1, MAX_SERIAL_ELEMENTS // size)
    return (slice(begin, begin + step) for begin in range(0, vectors, step))
