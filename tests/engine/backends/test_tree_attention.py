"""Attention to guesses that branch, against dense attention in float64 to what each row sees."""

import pytest
import torch

from engine.backends.reference.attention.paged_attention import ReferenceAttention
from tests.engine.backends.native.test_attention import LIMITS
from tests.engine.backends.tree_attention import SHAPES, largest_error


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [0, 33])
def test_pytorchs_operators(shape: str, window: int) -> None:
    for softcap in (0.0, 2.0):
        assert largest_error(ReferenceAttention, shape, window=window, softcap=softcap) < LIMITS[torch.float32]
