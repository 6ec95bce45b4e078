"""Parts are joined by their shares, however few have one, and sequences are cut to fill a device."""

from math import log

import pytest
import torch

from kernels.attention.attention_parts import (
    FEW_SPLITS,
    MAX_SPLITS,
    MIN_PART_TOKENS,
    join_parts,
    join_splits,
    parts_of,
    split_count,
)
from tests.kernels.poison import poisoned


@pytest.mark.parametrize("splits", [2, FEW_SPLITS, FEW_SPLITS + 1, MAX_SPLITS])
def test_parts_are_joined_by_their_shares(dtype: torch.dtype, device: torch.device, splits: int) -> None:
    """Sums of fp32 products above and below the fraction, powers of two to 2^-22, then one rounding to the format."""
    sums = torch.rand(splits, device=device) * 4 + 100
    sums[0] = float("-inf")
    with poisoned():
        output = torch.empty((3, 2, 80), dtype=dtype, device=device)
        parts, log_sums = parts_of(output, len(sums))
    kept = sums.isfinite()  # what has no share was not written
    parts[kept] = torch.rand((splits - 1, 3, 2, 80), device=device) + 1
    log_sums[:] = sums[:, None, None]
    log_sums[:, 1, 0] = float("-inf")  # a row without any
    join_parts(parts, log_sums, output)
    shares = (sums[kept].double() * log(2)).softmax(0)
    exact = torch.einsum("s,sthd->thd", shares, parts[kept].double())
    exact[1, 0] = 0
    error = (output.double() - exact).abs() / exact.clamp(min=1)
    assert error.max() <= torch.finfo(dtype).eps / 2 + 2 * splits * 2**-24 + 2 * 2**-22


def test_pieces_of_one_sequence_are_joined_and_whole_ones_stay(dtype: torch.dtype, device: torch.device) -> None:
    """As above; of the three sequences, the second is whole, and its result is there already."""
    starts = torch.tensor([0, MAX_SPLITS, MAX_SPLITS + 1, MAX_SPLITS + 4], dtype=torch.int32, device=device)
    with poisoned():
        parts = torch.empty((MAX_SPLITS + 9, 2, 80), device=device)
        sums = torch.empty(parts.shape[:2], device=device)
        output = torch.empty((3, 2, 80), dtype=dtype, device=device)
    output[1] = 7.0
    for begin, end in ((0, MAX_SPLITS), (MAX_SPLITS + 1, MAX_SPLITS + 3)):  # the last piece has no share
        parts[begin:end] = torch.rand((end - begin, 2, 80), device=device) + 1
        sums[begin:end] = torch.rand((end - begin, 2), device=device) * 4 + 100
    sums[MAX_SPLITS + 3] = float("-inf")
    join_splits(parts, sums, starts, output)
    assert (output[1] == 7.0).all()
    for work, begin, end in ((0, 0, MAX_SPLITS), (2, MAX_SPLITS + 1, MAX_SPLITS + 3)):
        shares = (sums[begin:end].double() * log(2)).softmax(0)
        exact = torch.einsum("sh,shd->hd", shares, parts[begin:end].double())
        error = (output[work].double() - exact).abs() / exact.clamp(min=1)
        assert error.max() <= torch.finfo(dtype).eps / 2 + 2 * MAX_SPLITS * 2**-24 + 2 * 2**-22


def test_one_part_is_the_result_itself(dtype: torch.dtype, device: torch.device) -> None:
    output = torch.zeros((3, 2, 16), dtype=dtype, device=device)
    parts, _ = parts_of(output, 1)
    assert parts is output


def test_programs_become_as_many_as_there_is_room_for() -> None:
    assert split_count(8, 132, 1 << 20) == 16
    assert split_count(132, 132, 1 << 20) == 1
    assert split_count(1000, 132, 1 << 20) == 1
    assert split_count(1, 1000, 1 << 20) == MAX_SPLITS


def test_parts_do_not_get_too_short() -> None:
    assert split_count(1, 1000, 3 * MIN_PART_TOKENS + 1) == 3
    assert split_count(1, 1000, 10) == 1
