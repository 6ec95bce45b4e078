"""Low-rank changes by the native operator against float64; rows of many adapters give what each gives alone."""

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.backends.native.linear_layers.adapted import NativeAdapted
from engine.model.layers.adapted import AdapterRows, Adapting, Expansion, LowRank, StepAdapters
from tests.engine.backends.native.measures import LIMITS, random, relative_error

Sizes = Sequence[tuple[int, int, int]]
"""Of each part its first output, its outputs and its rank."""
SHAPES: list[tuple[int, int, Sizes]] = [
    (1, 2, [(0, 1, 1)]),
    (33, 65, [(0, 33, 5)]),
    (100, 131, [(0, 60, 3), (60, 20, 16), (80, 20, 2)]),
    (100, 96, [(80, 20, 7)]),
    (960, 576, [(0, 576, 16), (768, 192, 64)]),
]
"""(outputs, inputs, parts): tails of vectors and pairs, odd ranks and inputs, parts that nothing is added to."""


def change_of(inputs: int, parts: Sizes, seed: int, dtype: torch.dtype) -> LowRank:
    a = random(sum(rank for _, _, rank in parts), inputs, seed=seed, dtype=dtype)
    expansions, rank_first = [], 0
    for first, outputs, rank in parts:
        expansions.append(Expansion(first, rank_first, random(rank, outputs, seed=seed + first + 1, dtype=dtype)))
        rank_first += rank
    return LowRank(a, tuple(expansions))


def added(x: Tensor, change: LowRank, outputs: int) -> Tensor:
    """The formula, in float64."""
    y = torch.zeros(len(x), outputs, dtype=torch.float64)
    shrunk = x.double() @ change.a.double().T
    for part in change.parts:
        rank, size = part.b.shape
        y[:, part.first : part.first + size] = shrunk[:, part.rank_first : part.rank_first + rank] @ part.b.double()
    return y


def begin(adapting: Adapting, slots: list[int]) -> None:
    adapting.begin(StepAdapters.of(np.array(slots), np.arange(len(slots))))


@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
@pytest.mark.parametrize(("outputs", "inputs", "parts"), SHAPES)
def test_it_equals_the_formula(
    level: ctypes.CDLL, outputs: int, inputs: int, parts: Sizes, dtype: torch.dtype, limit: float
) -> None:
    """In bf16 the layer's outputs, the shrunk numbers and the sum are each rounded once."""
    adapting = Adapting(3, 64)
    weight = random(outputs, inputs, seed=1, dtype=dtype)
    layer = NativeAdapted(level, weight, None, dtype, adapting)
    changes = {slot: change_of(inputs, parts, 10 * slot, dtype) for slot in (1, 3)}
    for slot, change in changes.items():
        layer.put(slot, change)
    for slots in ([1], [0, 1], [3, 0, 1, 3, 2, 1, 0], [1] * 13, [1] * 60 + [0, 3] * 7, [0, 2]):
        x = random(len(slots), 2 * inputs, seed=len(slots), dtype=dtype)[:, inputs:]
        expected = x.double() @ weight.double().T
        for slot, change in changes.items():
            rows = [row for row, own in enumerate(slots) if own == slot]
            expected[rows] += added(x[rows], change, outputs)
        begin(adapting, slots)
        assert relative_error(layer(x), expected) < 3 * limit, slots


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_rows_bits_depend_on_that_row_only(native: ctypes.CDLL, threads: int) -> None:
    outputs, inputs, parts = SHAPES[2]
    adapting = Adapting(4, 64)
    layer = NativeAdapted(native, random(outputs, inputs, seed=1), None, torch.float32, adapting)
    for slot in (1, 2, 3):
        layer.put(slot, change_of(inputs, parts, slot, torch.float32))
    slots = [row % 4 for row in range(97)]
    x = random(len(slots), inputs, seed=3)
    alone = []
    for row, slot in enumerate(slots):
        begin(adapting, [slot])
        alone.append(layer(x[row : row + 1]))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        begin(adapting, slots)
        assert torch.equal(layer(x), torch.cat(alone))
    finally:
        torch.set_num_threads(before)


def test_a_slot_that_is_free_again_adds_nothing(native: ctypes.CDLL) -> None:
    adapting = Adapting(1, 8)
    layer = NativeAdapted(native, random(20, 30, seed=1), None, torch.float32, adapting)
    x = random(4, 30, seed=2)
    plain = layer(x)
    layer.put(1, change_of(30, [(0, 20, 8)], 5, torch.float32))
    begin(adapting, [1, 0, 1, 0])
    changed = layer(x)
    assert not (changed == plain)[[0, 2]].any() and torch.equal(changed[[1, 3]], plain[[1, 3]])
    layer.put(1, None)
    assert torch.equal(layer(x), plain)


def test_rows_that_go_on_have_their_own_adapters(native: ctypes.CDLL) -> None:
    """In the last layer, where a matrix has fewer rows than the step has tokens."""
    adapting = Adapting(2, 8)
    layer = NativeAdapted(native, random(20, 30, seed=1), None, torch.float32, adapting)
    for slot in (1, 2):
        layer.put(slot, change_of(30, [(0, 20, 8)], slot, torch.float32))
    x = random(6, 30, seed=2)
    step = StepAdapters.of(np.array([1, 1, 2, 0, 2, 1]), np.array([1, 3, 4]))
    adapting.begin(step)
    assert torch.equal(layer(x[[1, 3, 4]]), layer(x)[[1, 3, 4]])


def test_rows_are_grouped_in_their_order() -> None:
    rows = AdapterRows.of(np.array([2, 0, 1, 2, 0, 2]))
    assert (rows.order.tolist(), rows.starts.tolist(), rows.slots.tolist()) == ([2, 0, 3, 5], [0, 1, 4], [1, 2])
    assert StepAdapters.of(np.zeros(3, np.int64), np.arange(3)) is None
