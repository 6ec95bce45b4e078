"""Shared by the products of experts in all weight formats: the order of tiles, and the stores.

Programs are numbered in groups of `GROUP` tiles of pairs; in a group the columns of all its tiles come first, then the
next columns. `expert_products.py` has the formulas.
"""

import triton
import triton.language as tl

from kernels.gate import activate


@triton.jit
def place_of(WIDTH: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Returns which tile of pairs this program takes, and the first of its columns."""
    COLUMNS: tl.constexpr = (WIDTH + TILE - 1) // TILE
    program = tl.program_id(0)
    first = program // (GROUP * COLUMNS) * GROUP
    group = tl.minimum(tl.num_programs(0) // COLUMNS - first, GROUP)
    index = program % (GROUP * COLUMNS)
    return first + index % group, index // group * TILE


@triton.jit
def store_pairs(
    gate: tl.tensor,  # fp32, pairs x columns, or the other way round
    up: tl.tensor,  # the same, where the product is gated
    bias: tl.tensor,  # of the expert
    shares: tl.tensor,
    output: tl.tensor,
    pair: tl.tensor,  # along one axis of `gate`; negative where there is none
    column: tl.tensor,  # along the other one
    WIDTH: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
) -> None:
    """Adds biases, gates or multiplies by shares, and stores the rows of pairs."""
    valid, inside = pair >= 0, column < WIDTH
    if BIAS:
        gate += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            up += tl.load(bias + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    found = activate(gate, up, ACTIVATION) if GATED else gate * tl.load(shares + pair, mask=valid, other=0.0)
    tl.store(output + pair * WIDTH + column, found.to(output.dtype.element_ty), mask=valid & inside)
