"""Computes a mixture of experts: sorts pairs of tokens and experts, and multiplies them, by four launches.

    output[t] = sum_i shares[t, i] expert_{chosen[t, i]}(x[t])              expert_e(x) = D_e activation(G_e x, U_e x)

(Shazeer et al., "Outrageously Large Neural Networks", 2017, https://arxiv.org/abs/1701.06538.) The sizes of all that is
launched follow from the number of tokens alone. So the host waits for nothing, and a recorded step serves every choice.
Where many tokens multiply weights of 8 bits as bytes, two more launches quantize the rows of both products.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.gate import Activation
from kernels.gate import reference as gated
from kernels.moe import packed_products, row_products
from kernels.moe.expert_products import (
    CANDIDATE_CONFIGS,
    SOME_ROWS,
    Expert,
    down,
    gate_up,
    rows_for,
    sum_over_experts,
    unsupported,
)
from kernels.moe.packed_products import PackedExpert
from kernels.moe.sort_by_expert import sort_by_expert
from kernels.quantized.product import MAX_SPLIT_K_ROWS
from kernels.quantized.rows import quantize_rows
from kernels.tuning import Config

__all__ = ["CANDIDATE_CONFIGS", "Expert", "experts", "reference", "unsupported"]


def experts(
    x: Tensor,
    chosen: Tensor,
    shares: Tensor,
    first: Expert | PackedExpert,
    second: Expert | PackedExpert,
    activation: Activation,
    *,
    rows: int | None = None,
    config: Config | None = None,
) -> Tensor:
    """Computes the weighted sum of each token's experts.

    Args:
        x: `[tokens, hidden]` fp32, bf16 or fp16, contiguous.
        chosen: `[tokens, used]` int32, the experts of each token, contiguous; an expert of another rank, which adds
            nothing here, has the number behind the last.
        shares: `[tokens, used]` fp32, what each expert's output is multiplied by, contiguous.
        first: gate and up, one below the other, `[experts, 2 x intermediate, hidden]` in the format of `x`, or packed.
        second: `[experts, hidden, intermediate]`, the same.
        activation: of gate and up.
        rows: of a tile; by default what suits the number of pairs.
        config: of both products, which are multiplied by the same kernel then.

    Returns `[tokens, hidden]` in the format of `x`.

    Example: 32 tokens that use 8 of 128 experts: x `[32, 2048]`, chosen and shares `[32, 8]`, first
    `[128, 1536, 2048]`, second `[128, 2048, 768]`.
    """
    count, used = experts_of(first), chosen.shape[1]
    assert shares.shape == chosen.shape == (len(x), used) and experts_of(second) == count
    tiles = sort_by_expert(chosen, count, rows or rows_for(chosen.numel(), count, x.dtype))
    many = tiles.rows >= SOME_ROWS and len(x) > MAX_SPLIT_K_ROWS
    if isinstance(first, PackedExpert) and first.form is not None and many:
        tokens = quantize_rows(x, first.form)
        between = row_products.gate_up(tokens, first, tiles, used, activation, x.dtype, config=config)
    elif isinstance(first, PackedExpert):
        between = packed_products.gate_up(x, first, tiles, used, activation, config=config)
    else:
        between = gate_up(x, first, tiles, used, activation, config=config)
    if isinstance(second, PackedExpert) and second.form is not None and many:
        gated_rows = quantize_rows(between, second.form)
        given = row_products.down(gated_rows, second, tiles, shares, x.dtype, config=config)
    elif isinstance(second, PackedExpert):
        given = packed_products.down(between, second, tiles, shares, config=config)
    else:
        given = down(between, second, tiles, shares, config=config)
    return sum_over_experts(given, chosen, count)


def experts_of(product: Expert | PackedExpert) -> int:
    return len(product.weight.codes if isinstance(product, PackedExpert) else product.weight)


def reference(
    x: Tensor,
    chosen: Tensor,
    shares: Tensor,
    first: Expert,
    second: Expert,
    activation: Activation,
    rounded: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> Tensor:
    """Computes the same with torch operators, one expert after the other, in the precision of `x`.

    Weights may be in another format: all of them may be too large for that of `x`. The rows that both products take are
    `rounded` first.
    """
    total = torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
    for expert in range(len(first.weight)):
        token, turn = (chosen == expert).nonzero(as_tuple=True)
        if not len(token):
            continue
        between = gated(_product(rounded(x[token]), first, expert), activation)
        given = _product(rounded(between), second, expert)
        total.index_add_(0, token, given.to(total.dtype) * shares[token, turn, None])
    return total.to(x.dtype)


def _product(x: Tensor, product: Expert, expert: int) -> Tensor:
    multiplied = x @ product.weight[expert].to(x.dtype).T
    return multiplied if product.bias is None else multiplied + product.bias[expert].to(x.dtype)
