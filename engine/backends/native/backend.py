"""Makes a backend of the native operators of a CPU."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.backends.base import Backend
from engine.backends.native.attention import NativeAttention, NativeAttentionStep
from engine.backends.native.codec import NativeCodec
from engine.backends.native.layers import NativeLayers
from engine.backends.native.linear_layers.linear import NativeLinear
from engine.backends.native.linear_layers.parts import CPU_DEVICE
from engine.backends.native.linears import NativeLinears
from engine.backends.native.sampling.adjuster import NativeAdjuster
from engine.backends.native.sampling.sampler import NativeSampler
from engine.backends.native.sampling.scorer import NativeScorer
from engine.backends.reference.mover import ReferenceMover
from engine.model.config import ModelConfig, TextModel
from engine.model.layers.layer import LayerWeights


class NativeBackend(Backend[NativeLinear, NativeAttentionStep]):
    """Serves the models that `engine.backends.native.attention.unsupported` has no objection to."""

    name = "native"

    def __init__(self, native: ctypes.CDLL, dtype: torch.dtype) -> None:
        super().__init__(CPU_DEVICE, dtype)
        self._native = native
        self.linears = NativeLinears(native, dtype)
        self.adjuster = NativeAdjuster(native)
        self.sampler = NativeSampler(native)
        self.scorer = NativeScorer(native)
        self.mover = ReferenceMover()
        self.codec = NativeCodec(native)

    def layers(
        self, config: ModelConfig, layers: Sequence[LayerWeights[NativeLinear]], norm: Tensor | None, first: int = 0
    ) -> NativeLayers:
        return NativeLayers(self._native, config, layers, norm, self.dtype, first)

    def attention(self, config: TextModel, pool: list[Tensor]) -> NativeAttention:
        return NativeAttention(self._native, pool, [layer.attention for layer in config.layers], self.dtype)
