"""Low-rank changes of rows of several adapters against fp64, for rows that are sorted here or on the device."""

import pytest
import torch
from torch import Tensor

from kernels.lora import (
    CANDIDATE_CONFIGS,
    FEW_ROWS,
    MANY_ROWS,
    WORDS_PER_MATRIX,
    AdaptedRows,
    adapt,
    adapted_rows,
    reference,
    sorted_rows,
    tile_rows,
)
from kernels.moe.sort_by_expert import reference as sorted_reference
from kernels.tuning import Config
from tests.kernels.poison import poisoned

SHAPES = [(1, [1], [1]), (33, [33], [5]), (130, [60, 20, 150], [3, 16, 20]), (256, [128, 64], [17, 33])]
"""Inputs, and of each part its outputs and its rank."""
MIXED = [2, 0, 1, 2, 3, 1, 0]
"""Slot 3 leaves the layer as it is, and slot 2 its first part where the layer has several."""
WIDEST = 52


class Problem:
    """Adapters in slots 1 and 2 of 3, and rows of them."""

    def __init__(
        self,
        inputs: int,
        sizes: list[int],
        ranks: list[int],
        slots: list[int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.sizes, self.slots = sizes, torch.tensor(slots, device=device)
        self.table = torch.zeros((4, 4, WORDS_PER_MATRIX), dtype=torch.int64)
        self.adapters: dict[int, tuple[Tensor, list[tuple[int, int, Tensor]]]] = {}
        for slot in (1, 2):
            taken = list(range(len(sizes)))[slot - 1 if len(sizes) > 1 else 0 :]
            a = torch.randn(sum(ranks[part] for part in taken), inputs, device=device, dtype=dtype)
            self.table[slot, 0] = torch.tensor([a.data_ptr(), 0, len(a), 0, 0])
            own: list[tuple[int, int, Tensor]] = []
            rank_first = 0
            for part in taken:
                b = torch.randn(ranks[part], sizes[part], device=device, dtype=dtype)
                first = sum(sizes[:part])
                words = [b.data_ptr(), rank_first, ranks[part], first, sizes[part]]
                self.table[slot, 1 + part] = torch.tensor(words)
                own.append((first, rank_first, b))
                rank_first += ranks[part]
            self.adapters[slot] = a, own
        self.table = self.table.to(device)
        self.x = torch.randn(len(slots), inputs, device=device, dtype=dtype)
        self.y = torch.randn(len(slots), sum(sizes), device=device, dtype=dtype)

    def check(self, rows: AdaptedRows, config: Config | None = None) -> None:
        """Each sum of products is rounded once in the outputs' format, and in fp32 as often as it has terms."""
        wide = {
            slot: (a.double(), [(first, rank, b.double()) for first, rank, b in own])
            for slot, (a, own) in self.adapters.items()
        }
        expected = reference(self.x.double(), self.y.double(), self.slots, wide)
        found = self.y.clone()
        with poisoned():
            adapt(self.x, found, rows, self.table, self.sizes, config=config)
        unchanged = [row for row, slot in enumerate(self.slots.tolist()) if slot not in self.adapters]
        assert torch.equal(found[unchanged], self.y[unchanged])
        epsilon = torch.finfo(self.y.dtype).eps if self.y.dtype != torch.float32 else 1e-5
        largest = float(expected.abs().max())
        torch.testing.assert_close(found.double(), expected, rtol=epsilon, atol=epsilon * largest)


@pytest.mark.parametrize(("inputs", "sizes", "ranks"), SHAPES)
@pytest.mark.parametrize("slots", [[0], [1], MIXED], ids=str)
def test_rows_sorted_on_the_device(
    inputs: int, sizes: list[int], ranks: list[int], slots: list[int], device: torch.device, dtype: torch.dtype
) -> None:
    problem = Problem(inputs, sizes, ranks, slots, device, dtype)
    problem.check(sorted_rows(problem.slots, 3, WIDEST))


@pytest.mark.parametrize("rows", [FEW_ROWS, MANY_ROWS])
@pytest.mark.parametrize("slots", [[1] * 70 + MIXED, [2] * 33 + [0, 1] * 9], ids=["of one", "of two"])
def test_chunks_beside_decodes(rows: int, slots: list[int], device: torch.device, dtype: torch.dtype) -> None:
    """As a mixed step has them: an adapter has several tiles, the last of them not full."""
    problem = Problem(130, [60, 20, 150], [3, 16, 20], slots, device, dtype)
    tiles = sorted_reference(problem.slots.int()[:, None], 4, rows)
    problem.check(adapted_rows(tiles, WIDEST))


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS[:-1], ids=str)
def test_other_configs(config: Config, device: torch.device) -> None:
    problem = Problem(1040, [48, 16], [16, 33], MIXED, device, torch.float16)
    problem.check(sorted_rows(problem.slots, 3, WIDEST), config)


def test_few_tiles_are_split_over_the_inputs_and_many_are_not(device: torch.device) -> None:
    few = sorted_rows(torch.ones(1, dtype=torch.int64, device=device), 3, WIDEST)
    many = sorted_rows(torch.ones(1 << 14, dtype=torch.int64, device=device), 3, WIDEST)
    assert few.shrunk.shape[0] > 1 == many.shrunk.shape[0]
    assert few.shrunk.shape[1:] == (FEW_ROWS, 64), "ranks are rounded up, so that rows begin at whole words"


def test_no_rows_launch_nothing(device: torch.device) -> None:
    x, y = torch.empty((0, 33), device=device), torch.empty((0, 40), device=device)
    table = torch.zeros((4, 2, WORDS_PER_MATRIX), dtype=torch.int64, device=device)
    adapt(x, y, sorted_rows(torch.empty(0, dtype=torch.int64, device=device), 3, WIDEST), table, [40])


def test_tiles_are_large_where_adapters_have_many_rows() -> None:
    assert tile_rows(MANY_ROWS * 8, 8) == MANY_ROWS and tile_rows(MANY_ROWS * 8 - 1, 8) == FEW_ROWS
