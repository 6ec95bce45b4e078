"""Makes a backend of PyTorch's operators, on any device: the reference that all others are tested against."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.backends.base import Backend
from engine.backends.reference.attention.paged_attention import ReferenceAttention
from engine.backends.reference.codec import ReferenceCodec
from engine.backends.reference.device_codec import DeviceCodec
from engine.backends.reference.elementwise import ReferenceElementwise
from engine.backends.reference.linear import ReferenceLinears
from engine.backends.reference.mover import ReferenceMover
from engine.backends.reference.sampling.adjuster import ReferenceAdjuster
from engine.backends.reference.sampling.sampler import ReferenceSampler
from engine.backends.reference.sampling.scorer import ReferenceScorer
from engine.model.attention import AttentionStep
from engine.model.config import ModelConfig, TextModel
from engine.model.layers.layer import LayerWeights
from engine.model.layers.linear import Linear
from engine.model.transformer import OperatorLayers


class ReferenceBackend(Backend[Linear, AttentionStep]):
    """Serves wherever PyTorch runs."""

    name = "torch"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self.linears = ReferenceLinears(device, dtype)
        self.adjuster = ReferenceAdjuster()
        self.sampler = ReferenceSampler()
        self.scorer = ReferenceScorer()
        self.mover = ReferenceMover()
        self.codec = ReferenceCodec() if device.type == "cpu" else DeviceCodec()

    def layers(
        self, config: ModelConfig, layers: Sequence[LayerWeights[Linear]], norm: Tensor | None, first: int = 0
    ) -> OperatorLayers[AttentionStep]:
        between = ReferenceElementwise(config.ropes, config.norm_eps, self.device, self.dtype)
        return OperatorLayers(config, layers, norm, between, first)

    def attention(self, config: TextModel, pool: list[Tensor]) -> ReferenceAttention:
        return ReferenceAttention(pool, [layer.attention for layer in config.layers], self.dtype)
