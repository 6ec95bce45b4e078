"""Products with packed weights against float64, of every kind and size; a row has its bits whatever is beside it."""

from math import sqrt

import pytest
import torch
from torch import Tensor

from kernels.quantized.four_bits import MAX_BEHIND_ROWS
from kernels.quantized.packed import RUN_BYTES, CodeKind, WeightCodes, pack
from kernels.quantized.product import (
    CANDIDATE_CONFIGS,
    MAX_SPLIT_K_ROWS,
    ROW_TILES,
    parts_of,
    product,
    rows_for,
    unsupported,
)
from kernels.tuning import Config
from tests.kernels.paged_problem import WALK
from tests.kernels.poison import poisoned
from tests.kernels.quantized.weights import KINDS, drawn, exact, magnitudes

SMALL = Config({"TILE": 16, "RUNS": 2}, warps=4, stages=2)


def check(
    weight: WeightCodes, x: Tensor, bias: Tensor | None = None, config: Config | None = SMALL, parts: int = 1
) -> None:
    """Weights are wrong by 3 units of fp32 of their terms, and rounded to the format unless scales multiply sums: with
    few rows, but not of 8 bits with offsets or with two groups in a run; a sum of n products is wrong by WALK sqrt(n)
    units of fp32 of the sum of their magnitudes (see paged_problem.py), a scale behind it and the bias by 3, each part
    by one more; and the result is rounded."""
    single, kept, rows = 2**-24, torch.finfo(x.dtype).eps / 2, len(x)
    behind = weight.kind in ("int4", "fp4") or (weight.offsets is None and weight.group % RUN_BYTES == 0)
    exact_weights = x.dtype == torch.float32 or (behind and rows <= MAX_BEHIND_ROWS.value)
    exactly, terms = exact(weight).to(x.device), magnitudes(weight).to(x.device)
    expected = x.double() @ exactly.t()
    bound = x.double().abs() @ terms.t()
    bound *= single * (WALK * sqrt(x.shape[1]) + 6 + parts) + (0 if exact_weights else kept)
    if bias is not None:
        expected += bias.double()
        bound += 2 * single * bias.double().abs()
    bound += expected.abs() * kept + x.shape[1] * torch.finfo(x.dtype).smallest_normal
    with poisoned():
        found = product(x, pack([weight], x.device), bias, config=config, parts=parts)
    assert found.dtype == x.dtype and found.shape == (rows, len(weight.values))
    excess = (found.double() - expected).abs() - bound * 1.01  # errors of errors
    assert (excess <= 0).all(), f"beyond the bound by {excess.max():.3g}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("inputs", "group"), [(31, 31), (100, 32), (128, 64), (256, 128)])
def test_every_kind_and_group(
    kind: CodeKind, inputs: int, group: int, device: torch.device, dtype: torch.dtype
) -> None:
    check(drawn(kind, 19, inputs, group), torch.randn(3, inputs, device=device, dtype=dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("inputs", "group"), [(100, 32), (90, 90)])
def test_offsets(kind: CodeKind, inputs: int, group: int, device: torch.device, dtype: torch.dtype) -> None:
    weight = drawn(kind, 19, inputs, group, offsets=True)
    check(weight, torch.randn(2, inputs, device=device, dtype=dtype), torch.randn(19, device=device, dtype=dtype))


@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize(("inputs", "group"), [(100, 32), (90, 90), (256, 64), (300, 128)])
def test_zeros(rows: int, inputs: int, group: int, device: torch.device, dtype: torch.dtype) -> None:
    weight = drawn("int4", 19, inputs, group, zeros=True)
    assert pack([weight], device).has_zeros
    check(weight, torch.randn(rows, inputs, device=device, dtype=dtype), torch.randn(19, device=device, dtype=dtype))


@pytest.mark.parametrize(("kind", "group"), [("int8", 16), ("fp8", 48)])
def test_groups_that_end_within_a_run(kind: CodeKind, group: int, device: torch.device, dtype: torch.dtype) -> None:
    for offsets in (False, True):
        weight = drawn(kind, 17, 112, group, offsets=offsets)
        check(weight, torch.randn(2, 112, device=device, dtype=dtype))


@pytest.mark.parametrize("rows", [1, 16, 17, 40, 130])
def test_any_number_of_rows(rows: int, device: torch.device, dtype: torch.dtype) -> None:
    check(drawn("int4", 33, 70, 32), torch.randn(rows, 70, device=device, dtype=dtype))


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_sums_in_parts(parts: int, device: torch.device, dtype: torch.dtype) -> None:
    """The last part may be shorter, and there may be fewer of them than were asked for."""
    bias = torch.randn(9, device=device, dtype=dtype)
    for weight in (drawn("int4", 9, 400, 32), drawn("int8", 9, 400, 400), drawn("fp8", 9, 400, 128)):
        check(weight, torch.randn(3, 400, device=device, dtype=dtype), bias, parts=parts)


@pytest.mark.parametrize("config", [None, *CANDIDATE_CONFIGS], ids=str)
def test_every_candidate_computes_the_same(config: Config | None, device: torch.device) -> None:
    for weight in (drawn("int4", 70, 300, 32), drawn("int4", 70, 300, 128), drawn("fp8", 70, 300, 300)):
        check(weight, torch.randn(2, 300, device=device), config=config)


def test_parts_of_one_layer_lie_side_by_side(device: torch.device) -> None:
    parts = [drawn("int4", outputs, 64, 32) for outputs in (5, 20, 3)]
    x = torch.randn(4, 64, device=device)
    whole = product(x, pack(parts, device), config=SMALL)
    apart = torch.cat([product(x, pack([part], device), config=SMALL) for part in parts], 1)
    torch.testing.assert_close(whole, apart, rtol=1e-5, atol=1e-5)


def test_it_writes_to_a_place_of_wider_rows(device: torch.device) -> None:
    weight, x = pack([drawn("int8", 20, 64, 64)], device), torch.randn(4, 64, device=device)
    wide = torch.full((4, 50), torch.nan, device=device)
    for parts in (1, 2):
        product(x, weight, output=wide[:, 7:27], config=SMALL, parts=parts)
        assert wide[:, 7:27].equal(product(x, weight, config=SMALL, parts=parts))
        assert wide[:, :7].isnan().all() and wide[:, 27:].isnan().all()


def test_a_row_has_the_same_bits_whatever_is_beside_it(device: torch.device, dtype: torch.dtype) -> None:
    """Compares within the numbers of rows that have a tile of one height."""
    weight = pack([drawn("int4", 33, 1024, 32)], device)
    x = torch.randn(16, 1024, device=device, dtype=dtype)
    every = product(x, weight)
    others = torch.cat((x[:5], torch.randn(11, 1024, device=device, dtype=dtype)))
    assert product(others, weight)[:5].equal(every[:5])
    for rows in (1, 5):
        assert product(x[:rows].contiguous(), weight).equal(every[:rows])


def test_a_scale_that_is_no_number_spoils_its_output_alone(device: torch.device) -> None:
    for weight in (drawn("int4", 20, 64, 32), drawn("int8", 20, 64, 64)):
        x = torch.randn(3, 64, device=device)
        plain = product(x, pack([weight], device))
        weight.scales[4, -1] = torch.nan
        found = product(x, pack([weight], device))
        others = [output for output in range(20) if output != 4]
        assert found[:, 4].isnan().all() and found[:, others].isfinite().all()
        torch.testing.assert_close(found[:, others], plain[:, others], rtol=1e-6, atol=1e-6)


def test_a_row_that_is_not_finite_leaves_the_others(device: torch.device) -> None:
    weight, x = pack([drawn("fp4", 20, 64, 32)], device), torch.randn(3, 64, device=device)
    plain = product(x, weight)
    x[1, 5] = torch.nan
    found = product(x, weight)
    assert found[1].isnan().all() and found[[0, 2]].equal(plain[[0, 2]])


def test_no_rows_are_no_work(device: torch.device) -> None:
    assert product(torch.empty(0, 64, device=device), pack([drawn("int8", 20, 64, 64)], device)).shape == (0, 20)


def test_few_outputs_are_cut_into_parts_that_fill_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.quantized.product.processors", lambda device: 132)
    cpu = torch.device("cpu")
    assert [parts_of(64, tiles, cpu) for tiles in (1, 64, 448, 2000)] == [16, 8, 1, 1]
    assert parts_of(7, 1, cpu) == 1, "a part of a few steps is over before its loads have come"
    assert [rows_for(rows) for rows in (1, 16, 17, 64, 65, MAX_SPLIT_K_ROWS, MAX_SPLIT_K_ROWS + 1, 9999)] == [
        16,
        16,
        32,
        64,
        128,
        128,
        128,
        128,
    ]
    assert ROW_TILES[-1] == MAX_SPLIT_K_ROWS, "rows whose sums are cut are those of a single tile"


def test_other_formats_are_named() -> None:
    assert unsupported(torch.bfloat16) == ""
    assert unsupported(torch.float64) == "quantized weights multiply fp32, fp16 and bf16, not float64"
