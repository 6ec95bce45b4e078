"""A router's logits have the digits of fp32, whatever its weights and the model's format."""

import pytest
import torch
from torch import Tensor

from engine.backends.triton.elementwise import TritonElementwise
from engine.backends.triton.linear_layers.routers import split_router, split_routers

TOKENS, EXPERTS, HIDDEN = 5, 12, 300
ROUNDED = 2.0**-23
"""Of each term of a sum of fp32 numbers, at most."""


def weights(dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    return (torch.randn(EXPERTS, HIDDEN) * 0.02).to(dtype).float()


@pytest.mark.parametrize(
    ("stored", "computed", "parts"),
    [
        (torch.bfloat16, torch.bfloat16, 1),
        (torch.float16, torch.bfloat16, 2),
        (torch.float32, torch.bfloat16, 3),
        (torch.float16, torch.float16, 1),
        (torch.float32, torch.float16, None),  # remainders are below the range of fp16
        (torch.float32, torch.float32, None),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_logits_are_as_exact_as_in_fp32(
    stored: torch.dtype, computed: torch.dtype, parts: int | None, biased: bool
) -> None:
    """Three parts in bf16 sum to every fp32 weight, so the only error is that of sums."""
    router, x = weights(stored), torch.randn(TOKENS, HIDDEN).to(computed)
    bias = torch.randn(EXPERTS) if biased else None
    split = split_router(router, computed)
    assert (None if split is None else split.parts) == parts
    between = TritonElementwise({}, 1e-5, split_routers([router], computed))
    logits = between.router_logits(x, router, bias)
    exact, terms = x.double() @ router.double().T, x.double().abs() @ router.double().abs().T
    if bias is not None:
        exact, terms = exact + bias, terms + bias.abs()
    assert logits.dtype == torch.float32 and logits.is_contiguous()
    assert ((logits - exact).abs() <= (HIDDEN * (parts or 1) + 2) * ROUNDED * terms).all()
    if stored == torch.float32 and computed == torch.bfloat16:  # fewer parts would be seen
        rounded = x.double() @ router.to(computed).double().T
        assert ((rounded - exact).abs() > (HIDDEN * 3 + 2) * ROUNDED * terms).any()


def test_a_router_that_is_not_finite_is_not_split() -> None:
    router = weights(torch.bfloat16)
    router[1, 2] = torch.inf
    assert split_router(router, torch.bfloat16) is None


def test_a_router_without_memory_has_one_part() -> None:
    """Its product is made as on a GPU: PyTorch computes the shape and the format of the result."""
    split = split_router(torch.empty(EXPERTS, HIDDEN, device="meta"), torch.bfloat16)
    assert split is not None
    logits = split.logits(torch.empty(TOKENS, HIDDEN, device="meta", dtype=torch.bfloat16), None)
    assert logits.shape == (TOKENS, EXPERTS) and logits.dtype == torch.float32
