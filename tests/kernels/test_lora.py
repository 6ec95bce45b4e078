"""Low-rank changes of rows of several adapters: shrink and expand against PyTorch's operators."""

import pytest
import torch
from torch import Tensor

from kernels.lora import WORDS_PER_MATRIX, adapt, reference

SHAPES = [(1, [(0, 1, 1)]), (33, [(0, 33, 5)]), (130, [(0, 60, 3), (60, 20, 16), (80, 150, 20)]), (256, [(7, 128, 17)])]
"""Inputs, and of each part its first output, its outputs and its rank."""


@pytest.mark.parametrize(("inputs", "parts"), SHAPES)
@pytest.mark.parametrize("slots", [[0], [1], [2, 0, 1, 2, 3, 1, 0]], ids=str)
def test_it_equals_the_reference(
    inputs: int, parts: list[tuple[int, int, int]], slots: list[int], device: torch.device, dtype: torch.dtype
) -> None:
    """Slot 3 leaves this layer as it is, and slot 2 its first part. Sums are fp32; the result is rounded once."""
    outputs = max(first + size for first, size, _ in parts) + 3
    words = torch.zeros((4, 1 + len(parts), WORDS_PER_MATRIX), dtype=torch.int64)
    adapters = {}
    for slot in (1, 2):
        taken = list(enumerate(parts))[slot - 1 if len(parts) > 1 else 0 :]
        a = torch.randn(sum(rank for _, (_, _, rank) in taken), inputs, device=device, dtype=dtype)
        words[slot, 0] = torch.tensor([a.data_ptr(), 0, len(a), 0, 0])
        own: list[tuple[int, int, Tensor]] = []
        rank_first = 0
        for number, (first, size, rank) in taken:
            b = torch.randn(rank, size, device=device, dtype=dtype)
            words[slot, 1 + number] = torch.tensor([b.data_ptr(), rank_first, rank, first, size])
            own.append((first, rank_first, b))
            rank_first += rank
        adapters[slot] = (a, own)
    x = torch.randn(len(slots), inputs, device=device, dtype=dtype)
    y = torch.randn(len(slots), outputs, device=device, dtype=dtype)
    rows = torch.tensor(slots, device=device)
    expected = reference(x, y, rows, adapters)
    adapt(x, y, rows, words.to(device), 40)
    scale = float(expected.float().abs().max())
    epsilon = torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
    torch.testing.assert_close(y.float(), expected.float(), rtol=epsilon, atol=epsilon * scale)
