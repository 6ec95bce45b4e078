"""Products of quantized rows and weights of 8 bits against float64; a row has its bits whatever is beside it."""

from math import sqrt

import pytest
import torch
from torch import Tensor

from kernels.device import assumed
from kernels.quantized.packed import WeightCodes, pack
from kernels.quantized.row_product import CANDIDATE_CONFIGS, row_format, row_product
from kernels.quantized.rows import QuantizedRows, dequantized, quantize_rows
from kernels.tuning import Config
from tests.kernels.paged_problem import WALK
from tests.kernels.poison import poisoned
from tests.kernels.quantized.weights import drawn, exact

SMALL = Config({"ROWS": 16, "TILE": 32, "RUNS": 2}, warps=4, stages=2)
KINDS = ("int8", "fp8")
CPU = torch.device("cpu")


def quantized(weight: WeightCodes, x: Tensor) -> QuantizedRows:
    form = row_format(pack([weight], x.device), x.device)
    assert form is not None
    return quantize_rows(x, form)


def check(weight: WeightCodes, x: Tensor, bias: Tensor | None = None, config: Config | None = SMALL) -> None:
    """Rows are what they stand for. A sum of n products is wrong by WALK sqrt(n) units of fp32 of their magnitudes (see
    paged_problem.py), one of int8 by 1 unit; scales, their product and the bias are 4 more. A GPU may keep 14 digits of
    a sum of fp8 only. The result is rounded."""
    single, kept = 2**-24, torch.finfo(x.dtype).eps / 2
    rows, numbers = quantized(weight, x), exact(weight).to(x.device)
    expected = dequantized(rows) @ numbers.t()
    magnitudes = dequantized(rows).abs() @ numbers.abs().t()
    digits = 2**-13 if x.is_cuda and rows.form.kind == "fp8" else single
    bound = magnitudes * (digits * WALK * sqrt(x.shape[1]) + 5 * single)
    if bias is not None:
        expected += bias.double()
        bound += 2 * single * bias.double().abs()
    bound += expected.abs() * kept + torch.finfo(x.dtype).smallest_normal
    output = torch.full((len(x), len(weight.values)), torch.nan, dtype=x.dtype, device=x.device)
    with poisoned():
        found = row_product(rows, pack([weight], x.device), bias, output, config=config)
    excess = (found.double() - expected).abs() - bound * 1.01  # errors of errors
    assert (excess <= 0).all(), f"beyond the bound by {excess.max():.3g}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("inputs", "group"), [(31, 31), (100, 32), (128, 64), (300, 128), (256, 256)])
def test_every_kind_and_group(kind: str, inputs: int, group: int, device: torch.device, dtype: torch.dtype) -> None:
    weight = drawn(kind, 35, inputs, group)  # type: ignore[arg-type]
    check(weight, torch.randn(19, inputs, device=device, dtype=dtype), torch.randn(35, device=device, dtype=dtype))


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS, ids=str)
def test_every_candidate_computes_the_same(config: Config, device: torch.device) -> None:
    for weight in (drawn("int8", 100, 300, 300), drawn("fp8", 100, 300, 128)):
        check(weight, torch.randn(130, 300, device=device), config=config)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [SMALL, *CANDIDATE_CONFIGS[:3]], ids=str)
def test_blocks_of_outputs_that_share_a_scale(kind: str, config: Config, device: torch.device) -> None:
    """The last block has fewer outputs, and the last group fewer inputs; a tile of 256 outputs has two scales."""
    weight = drawn(kind, 300, 500, 128)  # type: ignore[arg-type]
    weight.scales.copy_(weight.scales[::128].repeat_interleave(128, 0)[:300])
    assert pack([weight], device).by_block
    check(weight, torch.randn(19, 500, device=device), torch.randn(300, device=device), config=config)


def test_int8_is_summed_exactly(device: torch.device) -> None:
    """In fp32 each of these sums would lose the last digit."""
    inputs = 4096
    weight = WeightCodes(torch.full((16, inputs), 127, dtype=torch.int8), torch.ones(16, 1), inputs)
    weight.values[:, -1] = torch.arange(16, dtype=torch.int8)
    x = torch.full((16, inputs), 127.0, device=device)
    found = row_product(quantized(weight, x), pack([weight], device), None, torch.empty(16, 16, device=device))
    expected = 127 * (127 * (inputs - 1) + torch.arange(16, device=device))
    assert expected.max() > 1 << 24 and expected.min() % 2 == 1
    assert found.equal(expected.float().expand(16, 16))


def test_it_writes_to_a_place_of_wider_rows(device: torch.device) -> None:
    weight, x = drawn("int8", 20, 64, 64), torch.randn(18, 64, device=device)
    rows, packed = quantized(weight, x), pack([weight], device)
    wide = torch.full((18, 50), torch.nan, device=device)
    row_product(rows, packed, None, wide[:, 7:27], config=SMALL)
    assert wide[:, 7:27].equal(row_product(rows, packed, None, x.new_empty(18, 20), config=SMALL))
    assert wide[:, :7].isnan().all() and wide[:, 27:].isnan().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [128, 256])
def test_a_row_has_the_same_bits_whatever_is_beside_it(kind: str, group: int, device: torch.device) -> None:
    """Sums of numpy, in the interpreter, depend on a row's place in a tile, which those of int8 may change."""
    weight = drawn(kind, 40, 256, group)  # type: ignore[arg-type]
    packed, x = pack([weight], device), torch.randn(150, 256, device=device)
    every = row_product(quantized(weight, x), packed, None, x.new_empty(150, 40))
    for begin, end in ((0, 1), (0, 140), (149, 150) if kind == "int8" or device.type == "cuda" else (0, 129)):
        some = torch.cat((x[begin:end], torch.randn(5, 256, device=device)))
        found = row_product(quantized(weight, some), packed, None, x.new_empty(len(some), 40))
        assert found[: end - begin].equal(every[begin:end])


def test_what_is_no_number_spoils_its_row_or_output_alone(device: torch.device) -> None:
    weight, x = drawn("fp8", 20, 64, 64), torch.randn(5, 64, device=device)
    plain = row_product(quantized(weight, x), pack([weight], device), None, x.new_empty(5, 20))
    weight.values.view(torch.uint8)[4, 9] = 0x7F
    x[2, 3] = torch.nan
    found = row_product(quantized(weight, x), pack([weight], device), None, x.new_empty(5, 20))
    wrong = torch.zeros(5, 20, dtype=torch.bool, device=device)
    wrong[2], wrong[:, 4] = True, True
    assert found[wrong].isnan().all() and found[~wrong].equal(plain[~wrong])


def test_no_rows_are_no_work(device: torch.device) -> None:
    weight = drawn("int8", 20, 64, 64)
    found = row_product(
        quantized(weight, torch.empty(0, 64, device=device)),
        pack([weight], device),
        None,
        torch.empty(0, 20, device=device),
    )
    assert found.shape == (0, 20)


@pytest.mark.interpreted
def test_who_multiplies_bytes() -> None:
    """sm_80 has no fp8; on sm_100 bytes would be slower than numbers."""
    found = {}
    for capability in ((8, 0), (8, 9), (9, 0), (10, 0), (12, 0)):
        with assumed(*capability):
            forms = [row_format(pack([drawn(kind, 4, 64, 64)], CPU), CPU) for kind in KINDS]  # type: ignore[arg-type]
        found[capability] = [form is not None for form in forms]
    assert found == {
        (8, 0): [True, False],
        (8, 9): [True, True],
        (9, 0): [True, True],
        (10, 0): [False, True],
        (12, 0): [True, True],
    }


@pytest.mark.interpreted
def test_weights_that_rows_are_not_quantized_for() -> None:
    others = [
        drawn("int4", 4, 64, 32),
        drawn("int8", 4, 64, 64, offsets=True),
        drawn("int8", 4, 64, 16),
        drawn("fp8", 4, 192, 96),
        drawn("int8", 1, 40000, 40000),
    ]
    assert [row_format(pack([weight], CPU), CPU) for weight in others] == [None] * len(others)
