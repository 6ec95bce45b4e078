"""Codecs and conversions by PyTorch's operators, on any device: the reference of the native ones.

On a CPU everything is done in pieces that PyTorch does not share out among threads.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from core.config import Codec
from core.kvspec import SCALE_BYTES
from engine.device import DTYPES
from engine.wire import Landing

CODECS = {"fp8": (torch.float8_e4m3fn, 448.0), "int8": (torch.int8, 127.0)}
"""What values become, and its largest number."""
SERIAL = 1 << 15
"""Elements that one thread works through alone: `at::internal::GRAIN_SIZE` in PyTorch's sources."""


class TorchWire:
    """See `engine.wire.Wire`."""

    @torch.inference_mode()
    def encode(self, layer: Tensor, blocks: Tensor, codec: Codec) -> Tensor:
        vectors, size = layer[0, :, :, 0, 0].numel(), layer[0, 0, 0].numel()
        places = torch.arange(len(blocks) * vectors, device=layer.device)
        block, vector = places // vectors, places % vectors
        sources = blocks[block] * vectors + vector
        found = layer.view(-1, size)
        result = torch.empty((len(blocks), vectors * (SCALE_BYTES + size)), dtype=torch.uint8, device=layer.device)
        scale_part = result[:, : vectors * SCALE_BYTES].unflatten(1, (vectors, SCALE_BYTES))
        value_part = result[:, vectors * SCALE_BYTES :].unflatten(1, (vectors, size))
        for part in _parts(len(places), size, layer.device):
            scales, values = encoded(found[sources[part]], codec)
            scale_part[block[part], vector[part]] = scales[:, None].view(torch.uint8)
            value_part[block[part], vector[part]] = values.view(torch.uint8)
        return result

    @torch.inference_mode()
    def decode(self, payload: Tensor, landing: Landing, layer: Tensor) -> None:
        form, (_, kv_heads, sides, block_tokens, width) = landing.form, layer.shape
        vectors = kv_heads * sides
        dtype = DTYPES[form.dtype] if form.codec == "none" else CODECS[form.codec][0]
        scale_bytes = 0 if form.codec == "none" else vectors * SCALE_BYTES
        scales = payload[:, :scale_bytes].unflatten(1, (-1, SCALE_BYTES)) if scale_bytes else None
        rows = payload[:, scale_bytes:].unflatten(1, (vectors, form.block_tokens, -1)).transpose(1, 2)
        target = layer.flatten(1, 2).transpose(1, 2)  # [blocks, tokens, vectors, width]
        blocks = torch.tensor(landing.blocks, device=layer.device)
        tokens = torch.arange(landing.begin, landing.end, device=layer.device)
        for part in _parts(len(tokens), vectors * width, layer.device):
            away, there = tokens[part] - landing.first, tokens[part]
            source = away // form.block_tokens
            found = rows[source, away % form.block_tokens].view(dtype)  # [tokens, vectors, width]
            if scales is not None:
                found = found.float() * scales[source].view(torch.float32)  # [tokens, vectors, 1]
            target[blocks[there // block_tokens], there % block_tokens] = found.to(layer.dtype)


def encoded(found: Tensor, codec: Codec) -> tuple[Tensor, Tensor]:
    """Scales `[vectors]` fp32 and values of `[vectors, values]`; as `kernels.block_copy.reference`."""
    dtype, largest = CODECS[codec]
    found = found.float()
    found = torch.where(found.isfinite(), found, 0.0)
    highest = found.abs().amax(-1)
    # By a tensor: on a GPU torch divides by a number by multiplying with its inverse.
    scales = (highest / torch.full_like(highest, largest)).clamp(min=torch.finfo(torch.float32).tiny)
    scaled = found * (1 / scales)[:, None]
    converted = (scaled.round() if dtype == torch.int8 else scaled).to(dtype)
    return scales, torch.where(converted.float() == 0, 0.0, converted.float()).to(dtype)  # zeros have no sign


def _parts(rows: int, width: int, device: torch.device) -> Iterator[slice]:
    """Rows that are worked on at once: all of them on a GPU."""
    step = max(1, SERIAL // width) if device.type == "cpu" else rows
    return (slice(begin, begin + step) for begin in range(0, rows, max(1, step)))
