"""Encodes and decodes KV blocks with PyTorch operators on a GPU: a payload at once, its tokens by their index."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from contracts.kinds import Codec
from engine.backends.reference.codec import dtype_of, encoded, scaled, taken_apart
from engine.device import to_device
from engine.kv.codec import Landing


class DeviceCodec:
    """See `engine.kv.codec.BlockCodec`. Nothing here waits for the device."""

    @torch.inference_mode()
    def encode(self, layer: Tensor, blocks: Tensor, codec: Codec, parts: Sequence[int] = ()) -> Tensor:
        return wire_form(*encoded(layer[blocks], codec, parts))

    @torch.inference_mode()
    def decode(self, payload: Tensor, landing: Landing, layer: Tensor, parts: Sequence[int] = ()) -> None:
        _, vectors, block_tokens, _ = layer.shape
        scales, values = taken_apart(payload, landing, vectors, parts)
        tokens = torch.arange(landing.begin, landing.end, device=layer.device)
        place = tokens - landing.first
        source, away = place // landing.form.block_tokens, place % landing.form.block_tokens
        found = values.transpose(1, 2)[source, away].view(dtype_of(landing))  # [tokens, vectors, width]
        if scales is not None:
            found = scaled(found, scales[source].view(torch.float32), parts)
        blocks = to_device(np.array(landing.blocks, dtype=np.int64), layer.device)
        target = layer.transpose(1, 2)  # [blocks, tokens, vectors, width]
        target[blocks[tokens // block_tokens], tokens % block_tokens] = found.to(layer.dtype)


def wire_form(scales: Tensor, values: Tensor) -> Tensor:
    """Joins blocks' fp32 scales `[blocks, vectors, parts]` and values `[blocks, …]` to uint8 `[blocks, bytes]`."""
    return torch.cat((scales.flatten(1).view(torch.uint8), values.flatten(1).view(torch.uint8)), 1)
