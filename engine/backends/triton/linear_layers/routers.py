"""Multiplies 16-bit states by a router's fp32 weights on tensor cores, with the digits of fp32.

    x W^T = x W_1^T + x W_2^T + x W_3^T      W_1 = W in 16 bits, W_2 = W - W_1 in 16 bits, W_3 = W - W_1 - W_2

A bf16 number has 8 digits, so three have the 24 of fp32, and a product of two has 16, which fp32 holds: only sums are
rounded, as in a product in fp32, n terms by up to n 2^-23 of the sum of their magnitudes (tensor cores may cut off
where others round), in place of n 2^-24. Parts that are zero are left out: a checkpoint's router is mostly bf16, and
takes one product. All parts are the rows of one matrix, and take one launch.

fp16 has too narrow a range for a small remainder: a router whose parts in fp16 do not add up to it stays in fp32, as
does that of a model in fp32. A product in fp32 uses no tensor cores.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_ROUTER_PARTS = 3


@dataclass(frozen=True)
class SplitRouter:
    """A router's weights as a sum of 16-bit parts."""

    rows: Tensor  # [parts x experts, hidden]
    parts: int

    def logits(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Returns fp32 `[tokens, experts]`, contiguous, of `x` `[tokens, hidden]` in the format of the parts."""
        weights = self.rows.T
        if x.device.type == "cpu":  # PyTorch has sums of 16-bit products in fp32 only on a GPU
            sums = torch.mm(x.float(), weights.float())
        else:
            sums = torch.mm(x, weights, out_dtype=torch.float32)
        logits: Tensor = sums if self.parts == 1 else sums.view(len(x), self.parts, -1).sum(1)
        return logits if bias is None else logits.add_(bias)


def split_router(router: Tensor, dtype: torch.dtype) -> SplitRouter | None:
    """Splits fp32 `router` `[experts, hidden]` into parts of `dtype`; None where they would not add up to it."""
    if dtype == torch.float32:
        return None
    if router.is_meta:  # has no weights to split
        return SplitRouter(router.to(dtype), 1)
    parts: list[Tensor] = []
    rest = router
    while len(parts) < MAX_ROUTER_PARTS and (not parts or bool(rest.any())):
        parts.append(rest.to(dtype))
        rest = rest - parts[-1].float()
    return None if bool(rest.any()) else SplitRouter(torch.cat(parts), len(parts))


def split_routers(routers: Iterable[Tensor], dtype: torch.dtype) -> dict[Tensor, SplitRouter]:
    """Returns the parts of each router that has them."""
    found = ((router, split_router(router, dtype)) for router in routers)
    return {router: parts for router, parts in found if parts is not None}
