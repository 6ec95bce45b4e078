"""A sum over inputs that ranks may divide has the same bits, whoever holds its splits."""

import ctypes
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.backends.native.linear_layers.linear import NativeLinear
from engine.model.quantized import Weight, columns
from engine.parallel.sums import SumOrder, split_sum, tree_sum
from tests.engine.backends.native.measures import random
from tests.engine.backends.native.quantized_weights import KINDS, quantized_weight

LAYER_OUTPUTS = 70
ROW_COUNTS = (1, 2, 7, 33, 97)
UNORDERED = [kind for kind, made in KINDS.items() if "order" not in made]


def sums(level: ctypes.CDLL, weight: Weight, x: Tensor, splits: int, ranks: int) -> Tensor:
    """Returns what each of several ranks computes in fp32, added."""
    width = x.shape[1] // ranks
    own = []
    for rank in range(ranks):
        held = slice(rank * width, (rank + 1) * width)
        layer = NativeLinear(level, columns(weight, held, "a test"), None, x.dtype, SumOrder(splits // ranks, True))
        own.append(layer(x[:, held]))
        assert own[-1].dtype == torch.float32
    return tree_sum(own)


def check(level: ctypes.CDLL, weight: Weight, dtype: torch.dtype, splits: int) -> None:
    """Compares ranks with one another, and with the layer that rounds at once and adds a bias."""
    outputs, inputs = weight.shape
    bias = random(outputs, seed=2, dtype=dtype)
    for rows in ROW_COUNTS:
        x = random(rows, inputs, seed=rows, dtype=dtype)
        whole = sums(level, weight, x, splits, 1)
        for ranks in (2, 4, 8):
            if ranks <= splits:
                assert torch.equal(sums(level, weight, x, splits, ranks), whole), (rows, ranks)
        rounded = NativeLinear(level, weight, bias, dtype, SumOrder(splits))
        assert torch.equal(rounded(x), (whole + bias.float()).to(dtype)), rows
        assert torch.equal(rounded(x[-1:]), rounded(x)[-1:])
        unsplit = NativeLinear(level, weight, bias, dtype)(x)
        torch.testing.assert_close(rounded(x), unsplit, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=2e-2)


@pytest.mark.parametrize(("inputs", "splits"), [(2048, 8), (256, 8), (1536, 4), (4096, 8), (5120, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_splits_have_one_tree(level: ctypes.CDLL, dtype: torch.dtype, inputs: int, splits: int) -> None:
    """Splits within a block of the depth, and across several."""
    check(level, random(LAYER_OUTPUTS, inputs, seed=1, dtype=dtype) / inputs**0.5, dtype, splits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", UNORDERED)
def test_splits_of_quantized_weights(level: ctypes.CDLL, kind: str, dtype: torch.dtype) -> None:
    inputs = 2560 if kind == "fp8 by 160" else 2048
    weight = quantized_weight(LAYER_OUTPUTS, inputs, **KINDS[kind]).times(1 / 2048)
    sizes = weight.scales.abs()
    raised = torch.where(sizes < sizes.max() / 256, 4096.0, 1.0)  # as fp16, tiny scales would depend on others
    offsets = None if weight.offsets is None else weight.offsets * raised
    check(level, replace(weight, scales=weight.scales * raised, offsets=offsets), dtype, 8)


@pytest.mark.parametrize(
    ("inputs", "uncut", "splits"),
    [
        (1536, (1,), 4),
        (8192, (1,), 8),
        (8160, (1,), 1),  # 255 units
        (576, (64,), 1),  # nine heads
        (896, (64,), 2),  # fourteen
        (14336, (128,), 8),
        (11008, (128,), 2),  # 86 groups
        (704, (1,), 2),
    ],
)
def test_splits_cut_no_head_and_no_group(inputs: int, uncut: tuple[int, ...], splits: int) -> None:
    assert split_sum(inputs, *uncut) == SumOrder(splits)
    assert split_sum(inputs, *uncut, ranks=2) == SumOrder(max(1, splits // 2), partial=True)
