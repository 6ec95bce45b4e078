"""Encodes KV blocks by a Triton kernel, which reads a block once. What lands is decoded with PyTorch operators."""

from collections.abc import Sequence

import torch
from torch import Tensor

from contracts.kinds import Codec
from engine.backends.reference.device_codec import DeviceCodec, wire_form
from kernels import block_copy


class TritonCodec(DeviceCodec):
    """See `engine.kv.codec.BlockCodec`. What the kernel does not support goes PyTorch's way."""

    @torch.inference_mode()
    def encode(self, layer: Tensor, blocks: Tensor, codec: Codec, parts: Sequence[int] = ()) -> Tensor:
        assert codec != "none"
        block, widest = layer.shape[-2], max(parts or layer.shape[-1:])
        if block_copy.unsupported(block, widest, codec, layer.device):
            return super().encode(layer, blocks, codec, parts)
        values, scales = block_copy.encode(layer, blocks, codec, parts)
        return wire_form(scales, values)
