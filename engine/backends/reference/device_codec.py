"""Encodes and decodes KV blocks by PyTorch's operators on a GPU: a payload at once, its tokens by their index."""

import numpy as np
import torch
from torch import Tensor

from core.config import Codec
from engine.backends.reference.codec import dtype_of, encoded, taken_apart
from engine.device import to_device
from engine.kv.codec import Landing


class DeviceCodec:
    """See `engine.kv.codec.BlockCodec`. Nothing here waits for the device."""

    @torch.inference_mode()
    def encode(self, layer: Tensor, blocks: Tensor, codec: Codec) -> Tensor:
        scales, values = encoded(layer.flatten(2)[blocks], codec)
        return wire_form(scales, values.flatten(1))

    @torch.inference_mode()
    def decode(self, payload: Tensor, landing: Landing, layer: Tensor) -> None:
        _, vectors, block_tokens, _ = layer.shape
        scales, values = taken_apart(payload, landing, vectors)
        tokens = torch.arange(landing.begin, landing.end, device=layer.device)
        place = tokens - landing.first
        source, away = place // landing.form.block_tokens, place % landing.form.block_tokens
        found = values.transpose(1, 2)[source, away].view(dtype_of(landing))  # [tokens, vectors, width]
        if scales is not None:
            found = found.float() * scales[source].view(torch.float32)
        blocks = to_device(np.array(landing.blocks, dtype=np.int64), layer.device)
        target = layer.transpose(1, 2)  # [blocks, tokens, vectors, width]
        target[blocks[tokens // block_tokens], tokens % block_tokens] = found.to(layer.dtype)


def wire_form(scales: Tensor, values: Tensor) -> Tensor:
    """Joins blocks' fp32 scales `[blocks, vectors]` and values `[blocks, values]` to uint8 `[blocks, bytes]`."""
    return torch.cat((scales.view(torch.uint8), values.view(torch.uint8)), 1)
