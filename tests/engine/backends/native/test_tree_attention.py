"""Native attention to guesses that branch, against dense attention in float64 to what each row sees."""

import ctypes

import pytest
import torch

from engine.backends.native.attention import NativeAttention
from tests.engine.backends.native.test_attention import LIMITS
from tests.engine.backends.tree_attention import SHAPES, largest_error


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", LIMITS, ids=["fp32", "bf16"])
def test_native_on_every_processor(level: ctypes.CDLL, shape: str, dtype: torch.dtype) -> None:
    for window, softcap, shared in ((0, 0.0, 3), (33, 0.0, 7), (0, 2.0, 1)):
        error = largest_error(
            lambda pool, attentions: NativeAttention(level, pool, attentions),
            shape,
            window=window,
            softcap=softcap,
            shared=shared,
            dtype=dtype,
        )
        assert error < LIMITS[dtype]
