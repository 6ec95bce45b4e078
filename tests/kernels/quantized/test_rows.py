"""Quantized rows are as near to what they stand for as their format allows, whatever is in other rows."""

import pytest
import torch
from torch import Tensor

from kernels.quantized.rows import (
    CANDIDATES,
    LEAST,
    MOST,
    WIDEST,
    RowForm,
    RowKind,
    Rows,
    dequantized,
    quantize_rows,
    reference,
    unsupported,
)
from kernels.tuning import Config
from tests.kernels.poison import poisoned

ALL = 1 << 30
FORMS = [RowForm("int8", ALL), RowForm("int8", 32), RowForm("fp8", ALL), RowForm("fp8", 128)]
UNIT = 2**-24


def check(found: Rows, x: Tensor) -> None:
    """A scale is wrong by 2 units, or 4 by a GPU's division, and so is what a number is multiplied by, whose product is
    rounded once more. Then an integer is wrong by half of one, and e4m3 by a 16th of it or, below 2^-6, by 2^-10."""
    form, (rows, width) = found.form, x.shape
    groups = [part for part in x.double().split(form.group, 1)]
    expected = torch.stack([part.abs().amax(1).clamp(min=LEAST) / MOST[form.kind] for part in groups])
    assert found.scales.shape == (form.groups(width), rows) and found.values.shape == (rows, -(-width // 32) * 32)
    assert not found.values[:, width:].float().any()
    assert ((found.scales.double() - expected).abs() <= 4 * UNIT * expected).all()
    scales = found.scales.double().t().repeat_interleave(min(form.group, width), 1)[:, :width]
    rounding = scales / 2 if form.kind == "int8" else torch.maximum(x.double().abs() / 16, scales * 2**-10)
    excess = (dequantized(found) - x.double()).abs() - rounding - 12 * UNIT * x.double().abs()
    assert (excess <= 0).all(), f"beyond the bound by {excess.max():.3g}"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("width", [1, 31, 200])
def test_every_number_is_the_nearest(form: RowForm, width: int, device: torch.device, dtype: torch.dtype) -> None:
    sizes = torch.logspace(-3, 2, 5, device=device, dtype=dtype)
    x = torch.randn(5, width, device=device, dtype=dtype) * sizes[:, None]
    with poisoned():
        found = quantize_rows(x, form)
    check(found, x)


@pytest.mark.interpreted
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_values_are_those_of_torchs_operators(form: RowForm) -> None:
    """Only where a quotient is next to the middle of two may they differ, which none of these is."""
    x = torch.randn(9, 300, generator=torch.Generator().manual_seed(0))
    found, expected = quantize_rows(x, form), reference(x, form)
    assert found.values.float().equal(expected.values.float())
    torch.testing.assert_close(found.scales, expected.scales, rtol=4 * UNIT, atol=0)


@pytest.mark.parametrize("config", CANDIDATES, ids=str)
def test_every_candidate_computes_the_same(config: Config, device: torch.device) -> None:
    x = torch.randn(3, 700, device=device)
    check(quantize_rows(x, RowForm("fp8", 128), config=config), x)


@pytest.mark.parametrize("kind", MOST)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_leaves_the_others(kind: RowKind, wrong: float, device: torch.device) -> None:
    x = torch.randn(3, 40, device=device)
    plain = quantize_rows(x, RowForm(kind, ALL))
    x[1, 7] = wrong
    found = quantize_rows(x, RowForm(kind, ALL))
    assert not found.scales[0, 1].isfinite()
    assert found.scales[:, ::2].equal(plain.scales[:, ::2])
    assert found.values[::2].float().equal(plain.values[::2].float())


@pytest.mark.parametrize("kind", MOST)
def test_what_is_next_to_nothing_becomes_finite_numbers(kind: RowKind, device: torch.device) -> None:
    x = torch.stack((torch.zeros(40), torch.full((40,), 1e-38), torch.full((40,), 1e38))).to(device)
    found = quantize_rows(x, RowForm(kind, ALL))
    assert found.scales.isfinite().all()
    check(found, x)
    assert not found.values[0].float().any()


def test_no_rows_give_no_rows(device: torch.device) -> None:
    assert quantize_rows(torch.empty(0, 40, device=device), RowForm("int8", 32)).scales.shape == (2, 0)


def test_what_is_too_wide_is_refused_by_name() -> None:
    assert unsupported(WIDEST) == ""
    assert unsupported(WIDEST + 1) == "rows of up to 32768 values are quantized, not of 32769"
