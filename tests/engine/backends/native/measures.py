"""How far a result is from its float64 reference."""

import torch
from torch import Tensor


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest |found - expected| / (|expected| + the reference's root mean square): sums may cancel to nothing."""
    assert found.shape == expected.shape
    exact = expected.double()
    return float(((found.double() - exact).abs() / (exact.abs() + exact.square().mean().sqrt())).max())


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal values of their own seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


LIMITS = [(torch.float32, 2e-5), (torch.bfloat16, 4e-3)]
"""Formats, and the largest relative error that their rounding explains: bf16 keeps eight bits, and only results are
rounded to it."""
