"""What is packed is what was given, whatever the kind, the groups and the sizes; and says what cannot be packed."""

import pytest
import torch

from kernels.quantized.packed import CodeKind, pack, reference, unsupported
from tests.kernels.quantized.weights import KINDS, drawn, exact

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("inputs", "group"), [(1, 1), (33, 32), (64, 64), (100, 32), (200, 128), (70, 70)])
@pytest.mark.parametrize("offsets", [False, True])
def test_a_packed_weight_stands_for_the_same(kind: CodeKind, inputs: int, group: int, offsets: bool) -> None:
    parts = [drawn(kind, outputs, inputs, group, offsets=offsets) for outputs in (3, 5)]
    found = reference(pack(parts, CPU))
    expected = torch.cat([exact(part) for part in parts])
    assert (found - expected).abs().max() <= 2.0**-22 * expected.abs().max(), "an offset is fp32"


def test_zeros_in_the_middle_of_the_codes_need_no_offsets() -> None:
    assert pack([drawn("int4", 4, 64, 32)], CPU).offsets is None


@pytest.mark.parametrize("inputs", [64, 70])
def test_zeros_elsewhere_are_codes(inputs: int) -> None:
    """Also beside a weight that has them in the middle, and where a scale is 0 or no number."""
    weights = [drawn("int4", 40, inputs, 32), drawn("int4", 40, inputs, 32, zeros=True)]
    weights[1].scales[3, 1], weights[1].scales[5, 0] = 0, torch.nan
    weights[1].offsets[3, 1] = 0  # type: ignore[index]
    packed, expected = pack(weights, CPU), torch.cat([exact(each) for each in weights])
    assert packed.has_zeros and packed.offsets is not None and (packed.offsets[:, :40] == 8).all()
    assert sorted(packed.offsets[:, 40:].unique().tolist()) == [*range(16)]
    torch.testing.assert_close(reference(packed), expected, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("change", [0.25, 9.0, -16.0, torch.nan, torch.inf])
def test_an_offset_that_is_no_code_makes_all_of_them_offsets(change: float) -> None:
    weight = drawn("int4", 4, 64, 32, zeros=True)
    assert weight.offsets is not None
    weight.offsets[2, 1] = weight.scales[2, 1] * change
    packed = pack([weight], CPU)
    assert packed.offsets is not None and not packed.has_zeros
    torch.testing.assert_close(reference(packed), exact(weight), rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scales_have_16_bits_where_those_lose_nothing(dtype: torch.dtype) -> None:
    weight = drawn("int8", 4, 64, 32)
    weight = weight._replace(scales=(weight.scales * 2.0 ** (-40 if dtype != torch.float16 else 0)).to(dtype).float())
    weight.scales[1, 1] = torch.nan
    packed = pack([weight], CPU)
    assert packed.scales.dtype == dtype
    assert reference(packed).isnan().sum() == 32 and reference(packed)[1, 32:].isnan().all()


def test_an_fp8_value_that_is_no_number_makes_its_group_none() -> None:
    weight = drawn("fp8", 4, 100, 32)
    weight.values.view(torch.uint8)[2, 70] = 0xFF
    found = reference(pack([weight], CPU))
    assert found.isnan().nonzero().tolist() == [[2, place] for place in range(64, 96)]


def test_what_the_kernels_do_not_take_is_named() -> None:
    assert [unsupported(drawn(kind, 2, 96, 16)) for kind in ("int8", "fp8")] == ["", ""]
    assert unsupported(drawn("int4", 2, 12, 12)) == "", "one group has any number of inputs"
    why = "groups of int4 weights have a multiple of 32 inputs in the kernels, not 16"
    assert unsupported(drawn("int4", 2, 96, 16)) == why
    table = drawn("fp4", 2, 64, 32)._replace(table=tuple(float(value) for value in range(16)))
    assert unsupported(table).startswith("codes of 4 bits stand for themselves or for MXFP4's numbers")


@pytest.mark.parametrize(
    ("outputs", "block", "shared"),
    [((300,), 128, True), ((256, 100), 128, True), ((100, 256), 128, False), ((300,), 64, False), ((300,), 256, True)],
)
def test_blocks_of_outputs_that_share_scales(outputs: tuple[int, ...], block: int, shared: bool) -> None:
    weights = [drawn("fp8", each, 256, 128) for each in outputs]
    for weight in weights:
        weight.scales.copy_(weight.scales[::block].repeat_interleave(block, 0)[: len(weight.scales)])
    assert pack(weights, CPU).by_block == shared
