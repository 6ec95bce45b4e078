"""Whose operators compute: what a backend offers, and the two that serve wherever PyTorch runs.

A backend is chosen once, when the model loads (`engine/backends/choice.py`), and named in the log.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from core.status import Progress
from engine.backends.native.attention import NativeAttention
from engine.backends.native.codec import NativeWire
from engine.backends.native.layers import NativeLayers
from engine.backends.native.sampler import NativeSampler
from engine.backends.reference.attention import TorchAttention
from engine.backends.reference.codec import TorchWire
from engine.backends.reference.device_codec import DeviceWire
from engine.backends.reference.sampler import TorchSampler
from engine.backends.sampler import Sampler
from engine.kv.codec import Wire
from engine.kv.mover import BlockMover, TorchMover
from engine.model.attention import AttentionBackend
from engine.model.batch import Sampled
from engine.model.config import ModelConfig
from engine.model.elementwise import TorchElementwise
from engine.model.layer import Layer
from engine.model.layers import Layers, OperatorLayers
from engine.model.rope import Rotary
from engine.model.transformer import Model
from engine.plan import Plan, Work


class DecodeSteps(Protocol):
    """Steps of nothing but decodes, which a backend may run in a way of their own."""

    def serves(self, plan: Plan) -> bool:
        """Whether this is such a step."""
        ...

    def run(self, works: Sequence[Work], before: Sampled | None) -> Tensor:
        """Logits `[works, vocab]`, the caller's; `PENDING` tokens are what `before` sampled. KV is stored."""
        ...


class Backend(ABC):
    """Makes everything that computes, for one device and number format."""

    name: ClassVar[str]
    sampler: Sampler
    mover: BlockMover = TorchMover()
    wire: Wire = TorchWire()

    @property
    def native(self) -> ctypes.CDLL | None:
        """The library that linear layers are packed for; None: they are PyTorch's."""
        return None

    @abstractmethod
    def layers(self, config: ModelConfig, layers: Sequence[Layer], norm: Tensor) -> Layers:
        """Of the layers' weights, and that of the norm behind them."""

    @abstractmethod
    def attention(self, pool: list[Tensor], windows: tuple[int, ...]) -> AttentionBackend:
        """Of a pool's layers, each `[blocks, kv_heads, 2, block, dim]`, and their windows."""

    def warm_up(self, config: ModelConfig, attention: AttentionBackend) -> None:
        """Compiles what the steps of a start do not need and a request should not wait for."""
        return

    def decode_steps(
        self, model: Model, attention: AttentionBackend, most: int, longest: int, in_flight: int, progress: Progress
    ) -> DecodeSteps | None:
        """Of up to `most` sequences of up to `longest` tokens; `in_flight` steps may be launched and not collected.

        None where decodes are steps like any other.
        """
        return None


class TorchBackend(Backend):
    """PyTorch's operators, on any device: the reference."""

    name = "torch"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self.sampler = TorchSampler()
        self.wire = TorchWire() if device.type == "cpu" else DeviceWire()

    def layers(self, config: ModelConfig, layers: Sequence[Layer], norm: Tensor) -> Layers:
        rotary = Rotary(config.rope, config.head_dim, self._device, self._dtype)
        return OperatorLayers(config, layers, norm, TorchElementwise(rotary, config.norm_eps))

    def attention(self, pool: list[Tensor], windows: tuple[int, ...]) -> AttentionBackend:
        return TorchAttention(pool, windows)


class NativeBackend(Backend):
    """The native operators of a CPU."""

    name = "native"

    def __init__(self, native: ctypes.CDLL) -> None:
        self._native = native
        self.sampler = NativeSampler(native)
        self.wire = NativeWire(native)

    @property
    def native(self) -> ctypes.CDLL:
        return self._native

    def layers(self, config: ModelConfig, layers: Sequence[Layer], norm: Tensor) -> Layers:
        return NativeLayers(self._native, config, layers, norm)

    def attention(self, pool: list[Tensor], windows: tuple[int, ...]) -> AttentionBackend:
        return NativeAttention(self._native, pool, windows)
