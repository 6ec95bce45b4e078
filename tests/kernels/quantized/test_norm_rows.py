"""Norm and quantization in one launch give the bits of two."""

import pytest
import torch

from kernels.quantized.norm_rows import CANDIDATE_CONFIGS, norm_rows, reference
from kernels.quantized.rows import QuantizedRows, RowFormat
from kernels.tuning import Config
from tests.kernels.poison import poisoned
from tests.kernels.quantized.test_rows import FORMS

EPS = 1e-5


def same(one: QuantizedRows, other: QuantizedRows) -> bool:
    """Compares bits."""
    return one.values.view(torch.uint8).equal(other.values.view(torch.uint8)) and one.scales.equal(other.scales)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("width", [97, 300])
def test_the_bits_are_those_of_two_launches(
    form: RowFormat, width: int, device: torch.device, dtype: torch.dtype
) -> None:
    hidden, change = (torch.randn(3, width, device=device, dtype=dtype) for _ in range(2))
    weight = torch.randn(width, device=device)
    for added in (None, change):
        ours, theirs = hidden.clone(), hidden.clone()
        with poisoned():
            found = norm_rows(ours, added, weight, EPS, form)
        assert same(found, reference(theirs, added, weight, EPS, form))
        assert ours.equal(theirs) and (added is None or not ours.equal(hidden))


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS, ids=str)
def test_every_candidate_computes_the_same(config: Config, device: torch.device) -> None:
    """A sum of squares may have another order, which moves a quotient to the other side of a middle once in a while."""
    hidden, weight = torch.randn(3, 300, device=device), torch.randn(300, device=device)
    found = norm_rows(hidden, None, weight, EPS, FORMS[0], config=config)
    expected = reference(hidden, None, weight, EPS, FORMS[0])
    assert (found.values.int() - expected.values.int()).abs().max() <= 1
    torch.testing.assert_close(found.scales, expected.scales)


def test_a_row_that_is_not_finite_leaves_the_others(device: torch.device) -> None:
    hidden, weight = torch.randn(3, 40, device=device), torch.randn(40, device=device)
    plain = norm_rows(hidden, None, weight, EPS, FORMS[0])
    hidden[1, 7] = float("nan")
    found = norm_rows(hidden, None, weight, EPS, FORMS[0])
    assert found.scales[0, 1].isnan() and found.scales[:, ::2].equal(plain.scales[:, ::2])
    assert found.values[::2].equal(plain.values[::2])
