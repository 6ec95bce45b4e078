"""Draws tokens on CUDA by the Triton kernels, in two halves that never wait for the device.

The settings of a step's samples go to the device in one copy; the kernels find them in the same place in every step. So
a CUDA graph can hold the launch, and each replay is preceded by a new `fill`. Whether there is a filter is the launch's
shape: a graph that was captured with `filtered` serves all draws, one without it those of which `fill` says False.

Random bits, scaled scores and what the filters leave are the reference's (`kernels/score_floor.py` says how near to a
limit sums may disagree); logarithms may differ in the last bit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.backends.sampler import Draw, is_cut, keys_of, min_p_reach
from kernels.sample import sample
from kernels.sample_settings import SampleSettings

WORDS = 8
"""32-bit words that one sample's settings take."""
ALIGNED = 4
"""Words of 16 bytes: Triton compiles a kernel for each alignment of its arguments, maybe while a request waits."""


class DrawBuffer:
    """Holds the settings of up to `capacity` samples, at a place on the device that stays."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self._room = -(-capacity // ALIGNED) * ALIGNED
        self._words = torch.empty(WORDS * self._room, dtype=torch.int32, device=device)
        top_p, keys, *rest = self._words.split([2 * self._room, 2 * self._room, *[self._room] * 4])
        rows, top_k, temperature, reach = rest
        found = (rows, temperature.view(torch.float32), top_k, top_p.view(torch.float64), reach.view(torch.float32))
        self.settings = SampleSettings(*(each[:capacity] for each in found))
        self._keys = keys.view(-1, 2)[:capacity]

    def fill(self, draws: Sequence[Draw], vocab: int) -> bool:
        """Sends the settings, in one copy behind what is enqueued; tells whether any sample has a filter.

        Places behind the last sample draw greedily from row 0.
        """
        owners = np.repeat(np.arange(len(draws)), [len(draw.samples) for draw in draws])
        assert 0 < len(owners) <= self.capacity, f"{len(owners)} samples, room for {self.capacity}"
        settings = [draw.sampling for draw in draws]
        packed: Any = np.zeros(WORDS * self._room, dtype=np.int32)
        top_p, keys, rows, top_k, temperature, reach = np.split(packed, np.cumsum([2, 2, 1, 1, 1]) * self._room)
        place = slice(len(owners))
        top_p.view(np.float64)[place] = np.array([each.top_p for each in settings])[owners]
        keys.reshape(-1, 2)[place] = keys_of(draws)
        rows[place] = owners
        top_k[place] = np.array([each.top_k for each in settings])[owners]
        temperature.view(np.float32)[place] = np.array([each.temperature for each in settings])[owners]
        reach.view(np.float32)[place] = np.array([min_p_reach(each) for each in settings])[owners]
        words = torch.from_numpy(packed)
        if self._words.is_cuda:
            words = words.pin_memory()  # kept by PyTorch until the copy was made
        self._words.copy_(words, non_blocking=True)
        return any(each.temperature > 0 and (each.min_p > 0 or is_cut(each, vocab)) for each in settings)

    def launch(self, logits: Tensor, *, filtered: bool) -> tuple[Tensor, Tensor]:
        """Returns tokens and whether their rows were finite, int64 and bool `[capacity]`, of `logits` `[rows, vocab]`.

        Nothing here depends on what the buffer holds: it can be captured.
        """
        return sample(logits, self.settings, self._keys, filtered=filtered)


class TritonSampler:
    """See `engine.backends.sampler.Sampler`."""

    def sample(self, logits: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, Tensor]:
        buffer = DrawBuffer(sum(len(draw.samples) for draw in draws), logits.device)
        filtered = buffer.fill(draws, logits.shape[1])
        return buffer.launch(logits, filtered=filtered)
