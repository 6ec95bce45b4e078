"""The Triton kernels as a backend: on CUDA, and in Triton's interpreter on a CPU, where they are checked.

Importing this module loads Triton, which only hosts with a GPU install.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from core.kvspec import blocks_for
from core.status import Progress
from engine.backends.base import Backend, DecodeSteps
from engine.backends.triton.attention import TritonAttention
from engine.backends.triton.codec import TritonWire
from engine.backends.triton.decode_graphs import DecodeGraphs
from engine.backends.triton.decode_inputs import DecodeInputs
from engine.backends.triton.elementwise import TritonElementwise
from engine.backends.triton.mover import TritonMover
from engine.backends.triton.sampler import TritonSampler
from engine.model.attention import AttentionBackend
from engine.model.config import ModelConfig
from engine.model.layer import Layer
from engine.model.layers import Layers, OperatorLayers
from engine.model.rope import angle_table
from engine.model.transformer import Model
from kernels import attention_tiles, rms_norm, rope_and_store, sample


class TritonBackend(Backend):
    """Steps of nothing but decodes are recorded."""

    name = "triton"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.sampler = TritonSampler()
        self.mover = TritonMover()
        self.wire = TritonWire()

    def layers(self, config: ModelConfig, layers: Sequence[Layer], norm: Tensor) -> Layers:
        table = angle_table(config.rope, config.head_dim, config.max_model_len, self._device)
        return OperatorLayers(config, layers, norm, TritonElementwise(table, config.norm_eps))

    def attention(self, pool: list[Tensor], windows: tuple[int, ...]) -> AttentionBackend:
        return TritonAttention(pool, windows)

    def warm_up(self, config: ModelConfig, attention: AttentionBackend) -> None:
        assert isinstance(attention, TritonAttention)
        attention.warm_up(config.heads)

    def decode_steps(
        self, model: Model, attention: AttentionBackend, most: int, longest: int, in_flight: int, progress: Progress
    ) -> DecodeSteps | None:
        assert isinstance(attention, TritonAttention)
        inputs = DecodeInputs(most, blocks_for(longest, attention.block), attention.block, self._device, in_flight)
        return DecodeGraphs(model, attention, inputs, most, longest, progress)


def unsupported(config: ModelConfig, dtype: torch.dtype, block: int) -> str:
    """Why the kernels cannot run such a model, in one sentence; empty: they can."""
    return (
        attention_tiles.unsupported(dtype, config.head_dim, block, config.heads // config.kv_heads)
        or rope_and_store.unsupported(config.head_dim)
        or rms_norm.unsupported(config.hidden_size)
        or sample.unsupported(dtype, config.vocab_size)
    )
