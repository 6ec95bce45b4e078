"""The native adjuster's masks and penalties on lesser processors: the reference's bits, whatever the vocabulary."""

import ctypes

import numpy as np
import pytest
import torch

from contracts.messages.sampling import Sampling
from engine.backends.native.sampling.adjuster import NativeAdjuster
from engine.backends.reference.sampling.adjuster import ReferenceAdjuster
from engine.constraints import Masks
from engine.plan import Work


@pytest.mark.parametrize("vocab", [1, 8, 31, 33, 67, 1056, 40_001])
def test_every_level_makes_the_references_bits(vocab: int, level: ctypes.CDLL) -> None:
    """Tails of vectors and of words; a large one goes through several threads."""
    source = torch.Generator().manual_seed(vocab)
    logits = torch.randn((3, vocab), generator=source) * 5
    logits[2, vocab // 2] = torch.nan
    text = torch.randint(vocab, (50,), generator=source).tolist()
    asking = Sampling(0, repetition_penalty=1.3, frequency_penalty=0.3, presence_penalty=-0.7, grammar="any")
    works = [Work(row, 49, text[-1:], ([1],), asking, (0,), 30, text, 20, (0,)) for row in range(3)]
    bits = torch.randint(-(1 << 31), 1 << 31, (2, -(-vocab // 32)), generator=source).int().numpy()
    bits[1, ::3] = -1
    bits[:, -1] &= np.uint32((1 << (vocab - 1) % 32 + 1) - 1).view(np.int32)
    found, expected = (
        adjuster.adjust(logits.clone(), works, None, Masks([0, 2], bits))
        for adjuster in (NativeAdjuster(level), ReferenceAdjuster())
    )
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    assert vocab < 8 or not torch.equal(found, logits)
