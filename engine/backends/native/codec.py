"""Encodes and decodes KV blocks by the native operators of a CPU (`csrc/codec.c`), on the thread that calls."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from contracts.kinds import Codec
from contracts.kv.spec import SCALE_BYTES
from engine.backends.native.library import CODEC_DTYPE_CODES, CodecPool
from engine.device import dtype_name
from engine.kv.codec import Landing


class NativeCodec:
    def __init__(self, native: ctypes.CDLL) -> None:
        self._native = native

    def encode(self, layer: Tensor, blocks: Tensor, codec: Codec, parts: Sequence[int] = ()) -> Tensor:
        pool = _pool(layer, parts)
        assert blocks.dtype == torch.int64 and blocks.is_contiguous()
        size = pool.vectors * (pool.part_count * SCALE_BYTES + pool.block * pool.width)
        result = torch.empty((len(blocks), size), dtype=torch.uint8)
        self._native.baton_codec_encode(
            pool, blocks.data_ptr(), len(blocks), CODEC_DTYPE_CODES[codec], result.data_ptr()
        )
        return result

    def decode(self, payload: Tensor, landing: Landing, layer: Tensor, parts: Sequence[int] = ()) -> None:
        assert payload.is_contiguous()
        form, blocks = landing.form, (ctypes.c_int64 * len(landing.blocks))(*landing.blocks)
        source = CODEC_DTYPE_CODES[form.dtype if form.codec == "none" else form.codec]
        tokens = landing.first, landing.begin, landing.end
        pool = _pool(layer, parts)
        self._native.baton_codec_decode(pool, blocks, source, form.block_tokens, payload.data_ptr(), *tokens)


def _pool(layer: Tensor, parts: Sequence[int]) -> CodecPool:
    _, vectors, block, width = layer.shape
    assert layer.is_contiguous() and layer.is_cpu
    sizes = tuple(parts) or (width,)
    assert sum(sizes) == width
    array = (ctypes.c_int64 * len(sizes))(*sizes)  # the structure keeps it
    return CodecPool(
        CODEC_DTYPE_CODES[dtype_name(layer.dtype)], vectors, block, width, len(sizes), array, layer.data_ptr()
    )
