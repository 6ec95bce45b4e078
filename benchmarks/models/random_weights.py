"""A checkpoint without a file: random numbers, made on the device whenever a tensor is read.

Random weights run at the speed of trained weights. With a spread of 1 / sqrt(inputs) a layer keeps the size of its
inputs, so that a model of any depth gives finite logits.
"""

import hashlib
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.limits.floor import work_of
from engine.model.checkpoint.read_config import read_config
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config import ModelConfig
from engine.model.quantized import Form


class RandomWeights(Checkpoint):
    """Makes weights for the config in `directory`, as if its tensors were there as well."""

    def __init__(self, directory: Path, device: torch.device, dtype: torch.dtype) -> None:
        self._config = read_config(directory)
        self._device = device
        self._dtype = dtype

    def weight(self, name: str, shape: tuple[int, int]) -> Tensor:
        return self.tensor(name, shape)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        values = torch.empty(shape, dtype=self._dtype, device=self._device)
        return values.normal_(0, shape[-1] ** -0.5) if len(shape) > 1 else values.uniform_(0.5, 1.5)

    def holds(self, name: str) -> bool:
        return True

    def parameters(self) -> Counter[Form | None]:
        assert isinstance(self._config, ModelConfig)
        work = work_of(self._config, self._dtype)
        experts = work.mixture.layers * work.mixture.experts * work.mixture.values
        ends = work.head * (1 if self._config.tied_head else 2)
        return Counter({None: work.every + work.sampled + experts + ends})

    def pass_over(self, name: str) -> None:
        """Does nothing: no tensor is unused."""

    def refuse_unused(self, endings: tuple[str, ...] = (), beginnings: tuple[str, ...] = ()) -> None:
        """There are no unused tensors."""

    def digest(self, salt: bytes = b"") -> str:
        return hashlib.sha256(salt + b"random").hexdigest()[:32]
