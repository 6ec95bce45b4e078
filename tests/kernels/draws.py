"""Samples with all kinds of settings, for the kernels that draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

import torch
from torch import Tensor

from kernels.sampling.sample_settings import SampleSettings


@dataclass(frozen=True)
class Settings:
    """Of one sample; see `kernels.sampling.sample.sample`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def samples_of(
    rows: Sequence[int], settings: Sequence[Settings], device: torch.device, precision: torch.dtype = torch.float64
) -> SampleSettings:
    """As the kernels take them; each sample draws from its row."""
    return SampleSettings(
        torch.tensor(rows, dtype=torch.int32, device=device),
        torch.tensor([each.temperature for each in settings], dtype=torch.float32, device=device),
        torch.tensor([each.top_k for each in settings], dtype=torch.int32, device=device),
        torch.tensor([each.top_p for each in settings], dtype=precision, device=device),
        torch.tensor([log(each.min_p) if each.min_p else -inf for each in settings], device=device),
    )


def fenced(rows: int, vocab: int, dtype: torch.dtype, device: torch.device, seed: int, spread: float = 2.0) -> Tensor:
    """Random logits, some of them equal, between NaN that must not be read: behind each row, and every other row."""
    wide = torch.full((2 * rows, vocab + 3), torch.nan, dtype=dtype, device=device)
    logits = torch.randn((rows, vocab), generator=torch.Generator().manual_seed(seed)) * spread
    logits[:, : vocab // 2] = logits[:, : vocab // 2].bfloat16().float()
    wide[::2, :vocab] = logits.to(dtype=dtype, device=device)
    return wide[:, :vocab]
