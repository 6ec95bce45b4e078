"""Makes inputs of sampling: logits with the spread of a model's, and one sample's settings for each row of them."""

from math import inf, log
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels.case import random
from kernels.sampling.sample_settings import SampleSettings

LLAMA, QWEN = 128_256, 151_936
"""Vocabularies of the two models."""
SPREAD = 3.0
"""Standard deviation of the logits."""


class Filters(NamedTuple):
    """Holds a sample's filters. `top_k` 0, `top_p` 1 and `min_p` 0 are off; `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __str__(self) -> str:
        parts = [f"temperature {self.temperature:g}" if self.temperature else "greedy"]
        parts += [f"top_k {self.top_k}"] if self.top_k else []
        parts += [f"top_p {self.top_p:g}"] if self.top_p < 1 else []
        parts += [f"min_p {self.min_p:g}"] if self.min_p else []
        return ", ".join(parts)

    @property
    def on(self) -> bool:
        """Tells whether more has to be known of a row than its largest."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def of_each(self, rows: int, device: torch.device) -> SampleSettings:
        """Makes the settings of so many samples, each of its own row."""

        def each(value: float, kind: torch.dtype) -> Tensor:
            return torch.full((rows,), value, dtype=kind, device=device)

        return SampleSettings(
            torch.arange(rows, dtype=torch.int32, device=device),
            each(self.temperature, torch.float32),
            each(self.top_k, torch.int32),
            each(self.top_p, torch.float32),
            each(log(self.min_p) if self.min_p else -inf, torch.float32),
        )


def random_logits(rows: int, vocabulary: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Draws logits `[rows, vocabulary]`."""
    return random((rows, vocabulary), device, dtype).mul_(SPREAD)


def random_bits(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Makes keys: random words."""
    whole = torch.iinfo(torch.int32)
    return torch.randint(whole.min, whole.max, shape, dtype=torch.int32, device=device)
