"""Draws tokens on CUDA by the Triton kernels, without waiting for the device.

The settings of a step's samples are copied to the device at once. Random bits, scaled scores and the filters' results
equal the reference's (`kernels/sampling/score_floor.py` bounds the error of thresholds); logarithms may differ in the
last bit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.backends.sampler import Draw, is_cut, keys_of, min_p_reach
from engine.device import to_device
from kernels.sampling.sample import sample
from kernels.sampling.sample_settings import SampleSettings

SETTINGS_WORDS = 8
"""32-bit words of one sample's settings."""
ALIGNED_WORDS = 4
"""Words in 16 bytes: Triton compiles a kernel for each alignment of its arguments, perhaps during a request."""


class TritonSampler:
    def sample(self, logits: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, Tensor]:
        settings, keys = sent(draws, logits.device)
        return sample(logits, settings, keys, filtered=is_filtered(draws, logits.shape[1]))


def is_filtered(draws: Sequence[Draw], vocab: int) -> bool:
    """Returns whether any draw has a temperature, and a filter that may exclude some of `vocab` ids."""
    random = [draw.sampling for draw in draws if draw.sampling.temperature > 0]
    return any(each.min_p > 0 or is_cut(each, vocab) for each in random)


def sent(draws: Sequence[Draw], device: torch.device) -> tuple[SampleSettings, Tensor]:
    """Sends the settings of all samples, and the words that key their noise, int32 `[samples, 2]`."""
    owners = np.repeat(np.arange(len(draws)), [len(draw.samples) for draw in draws])
    count, room = len(owners), -(-len(owners) // ALIGNED_WORDS) * ALIGNED_WORDS
    kinds = [draw.sampling for draw in draws]
    packed: Any = np.zeros(SETTINGS_WORDS * room, dtype=np.int32)
    places = np.cumsum([2, 2, 1, 1, 1]) * room
    top_p, keys, rows, top_k, temperature, reach = np.split(packed, places)
    top_p.view(np.float64)[:count] = np.array([each.top_p for each in kinds])[owners]
    keys.reshape(-1, 2)[:count] = keys_of(draws)
    rows[:count] = owners
    top_k[:count] = np.array([each.top_k for each in kinds])[owners]
    temperature.view(np.float32)[:count] = np.array([each.temperature for each in kinds])[owners]
    reach.view(np.float32)[:count] = np.array([min_p_reach(each) for each in kinds])[owners]
    on_device: Any = to_device(packed, device).tensor_split(places.tolist())
    settings = SampleSettings(
        rows=on_device[2][:count],
        temperature=on_device[4].view(torch.float32)[:count],
        top_k=on_device[3][:count],
        top_p=on_device[0].view(torch.float64)[:count],
        min_p_reach=on_device[5].view(torch.float32)[:count],
    )
    return settings, on_device[1].view(-1, 2)[:count]
