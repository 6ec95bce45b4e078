"""Blocks arrive whole, and nothing beside them is touched; codes are torch's own casts of scaled values."""

import random

import pytest
import torch
from torch import Tensor

from engine.kv.moves import batches
from engine.plan import BlockMove
from kernels.block_copy import (
    CANDIDATE_CONFIGS,
    CODEC_FORMATS,
    CodecName,
    copy,
    encode,
    gather,
    reference,
    reference_encode,
    scatter,
    unsupported,
)
from kernels.device import assumed
from kernels.tuning import Config
from tests.kernels.poison import poisoned

CPU = torch.device("cpu")
CODES: tuple[CodecName, ...] = ("fp8", "int8")
POOLS = [(3, 5, 4, 8, 16), (2, 4, 3, 16, 22), (1, 7, 1, 24, 20)]
"""With layers, with an odd width and number of vectors, and with one layer alone."""


def bits(tensor: Tensor) -> Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def made_pool(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)


def numbers(*values: int, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def of_blocks(pool: Tensor, blocks: Tensor) -> Tensor:
    """`[n, layers, …]`."""
    return pool[:, blocks].transpose(0, 1)


def only_blocks(pool: Tensor, blocks: Tensor) -> Tensor:
    """Returns the pool with NaN in all other blocks."""
    kept = torch.full_like(pool, float("nan"))
    kept[:, blocks] = pool[:, blocks]
    return kept


def decoded(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    return (values.float() * scales[..., None]).to(dtype)


@pytest.mark.parametrize("shape", POOLS, ids=str)
def test_blocks_arrive_as_they_were(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
    pool = made_pool(shape, device, dtype)
    blocks = numbers(3, 1, 2, device=device)
    with poisoned():
        staging = gather(only_blocks(pool, blocks), blocks)
    assert staging.is_contiguous() and torch.equal(staging, of_blocks(pool, blocks))
    assert torch.equal(staging, reference(pool, blocks))

    target, there = torch.full_like(pool, float("nan")), numbers(1, 3, 0, device=device)
    scatter(staging, target, there)
    assert torch.equal(of_blocks(target, there), of_blocks(pool, blocks))
    assert torch.equal(bits(target), bits(only_blocks(target, there))), "another block was written"


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS, ids=str)
def test_every_candidate_moves_the_same(config: Config, device: torch.device) -> None:
    pool = made_pool((2, 4, 8, 16, 22), device, torch.float32)
    blocks = numbers(2, 3, device=device)
    staging = gather(pool, blocks, config=config)
    assert torch.equal(staging, of_blocks(pool, blocks))
    target = torch.zeros_like(pool)
    scatter(staging, target, blocks, config=config)
    copy(target, blocks, numbers(1, 2, device=device), config=config)
    assert torch.equal(target[:, 1:], pool[:, (2, 3, 3)])


def test_no_blocks_are_no_work(device: torch.device, dtype: torch.dtype) -> None:
    pool, none = made_pool(POOLS[0], device, dtype), numbers(device=device)
    kept = pool.clone()
    scatter(gather(pool, none), pool, none)
    copy(pool, none, none)
    assert torch.equal(pool, kept)
    values, scales = encode(pool[0], none, "int8")
    assert values.shape == (0, *pool.shape[2:]) and scales.shape == (0, 4, 1)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("shape", POOLS, ids=str)
def test_codes_are_the_references_to_the_bit(
    shape: tuple[int, ...], code: CodecName, device: torch.device, dtype: torch.dtype
) -> None:
    pool = made_pool(shape, device, dtype)
    pool[..., 0] *= -1e-6  # of those there are zeros
    blocks = numbers(3, 1, device=device)
    for layer, fenced in zip(pool, only_blocks(pool, blocks), strict=True):
        expected, expected_scales = reference_encode(layer, blocks, code)
        with poisoned():
            values, scales = encode(fenced, blocks, code)
        assert torch.equal(scales, expected_scales) and values.dtype == CODEC_FORMATS[code][0]
        assert torch.equal(bits(values), bits(expected))


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("parts", [(21, 6), (64, 16), (5, 7, 1)], ids=str)
def test_parts_have_a_scale_each_and_keep_their_places(
    parts: tuple[int, ...], code: CodecName, device: torch.device, dtype: torch.dtype
) -> None:
    """Each part is what it would be as a vector of its own, though what stands behind is 16 times as large."""
    layer = made_pool((5, 3, 16, sum(parts)), device, dtype)
    layer[..., parts[0] :] *= 16
    blocks = numbers(3, 1, device=device)
    with poisoned():
        values, scales = encode(only_blocks(layer[None], blocks)[0], blocks, code, parts)
    expected, expected_scales = reference_encode(layer, blocks, code, parts)
    assert torch.equal(scales, expected_scales) and torch.equal(bits(values), bits(expected))
    assert scales.shape == (2, 3, len(parts))
    alone = [reference_encode(part, blocks, code) for part in layer.split(parts, -1)]
    assert torch.equal(bits(values), bits(torch.cat([codes for codes, _ in alone], -1)))
    assert torch.equal(scales, torch.cat([scale for _, scale in alone], -1))


@pytest.mark.parametrize("code", CODES)
def test_values_come_back_within_half_a_step(code: CodecName, device: torch.device, dtype: torch.dtype) -> None:
    """Half a step of int8 is scale / 2; of fp8 |x| / 16, or scale / 1024 where its steps are even. Scale and quotient
    are rounded in fp32 (unit u: 4 u of the quotient, at most 448), what comes back to the pool's format."""
    layer = made_pool(POOLS[0], device, dtype)[0]
    values, scales = encode(layer, torch.arange(len(layer), device=device), code)
    exact, found = layer.double(), decoded(values, scales, dtype).double()
    step = scales.double()[..., None]
    half = step / 2 if code == "int8" else torch.maximum(exact.abs() / 16, step / 1024)
    unit = torch.finfo(torch.float32).eps / 2
    rounded = torch.finfo(dtype).eps / 2 * (exact.abs() + half) + torch.finfo(dtype).smallest_normal
    assert ((found - exact).abs() <= half + 4 * unit * 448 * step + rounded).all()


def test_e4m3_is_torchs_own_cast(device: torch.device) -> None:
    """A largest value of 448 makes the scale 1: what is left is the cast. All numbers of the format, the middles
    between them, which are ties, and their neighbours in fp32, of both signs."""
    exact = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (exact[1:] + exact[:-1]) / 2
    beside = [torch.nextafter(middles, torch.tensor(limit)) for limit in (0.0, 448.0)]
    tiny = torch.tensor([1e-40, 1e-30, 2.0**-10, 2.0**-11])
    every = torch.cat((exact, middles, *beside, tiny))
    every = torch.cat((every, -every))
    given = torch.cat((every, torch.zeros(1024 - len(every)))).to(device)
    layer = given.view(1, 1, 32, 32).expand(1, 2, 32, 32).contiguous()
    values, scales = encode(layer, numbers(0, device=device), "fp8")
    assert (scales == 1).all()
    assert torch.equal(values[0, 0].flatten().float(), given.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("code", CODES)
def test_zeros_stay_zeros(code: CodecName, device: torch.device, dtype: torch.dtype) -> None:
    layer = torch.zeros(POOLS[0][1:], device=device, dtype=dtype)
    values, scales = encode(layer, numbers(1, 2, device=device), code)
    assert not values.float().any() and scales.isfinite().all()
    assert not decoded(values, scales, dtype).any()


@pytest.mark.parametrize("code", CODES)
def test_what_a_block_held_before_spoils_nothing(code: CodecName, device: torch.device, dtype: torch.dtype) -> None:
    layer = made_pool(POOLS[0], device, dtype)[0]
    clean = layer.clone()
    for offset, stale in enumerate((float("nan"), float("inf"), float("-inf"))):
        layer[2, :, 5 + offset], clean[2, :, 5 + offset] = stale, 0.0
    blocks = numbers(2, device=device)
    (values, scales), (expected, expected_scales) = encode(layer, blocks, code), encode(clean, blocks, code)
    assert torch.equal(values.float(), expected.float()) and torch.equal(scales, expected_scales)


@pytest.mark.parametrize("code", CODES)
def test_extremes_stay_finite(code: CodecName, device: torch.device, dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    layer = torch.zeros(POOLS[0][1:], device=device, dtype=dtype)
    layer[1, :, 0] = limits.max
    layer[1, :, 1] = limits.min
    layer[2] = limits.smallest_normal
    layer[3] = limits.smallest_normal * limits.eps
    values, scales = encode(layer, numbers(1, 2, 3, device=device), code)
    assert values.float().isfinite().all() and scales.isfinite().all()
    assert values.float().abs().max() == CODEC_FORMATS[code][1]


@pytest.mark.parametrize("layers", [1, 3])
def test_a_block_that_is_read_may_be_written_by_a_later_move(layers: int, device: torch.device) -> None:
    """1 goes to 4, then 2 takes its place, then 3 that one's: every block moves on by one."""
    pool = made_pool((layers, 5, 4, 8, 16), device, torch.float32)
    expected = of_blocks(pool, numbers(0, 2, 3, 3, 1, device=device))
    copy(pool, numbers(1, 2, 3, device=device), numbers(4, 1, 2, device=device))
    assert torch.equal(of_blocks(pool, torch.arange(5, device=device)), expected)


@pytest.mark.parametrize("seed", range(3))
def test_batches_of_moves_have_the_effect_of_one_after_the_other(seed: int, device: torch.device) -> None:
    choice = random.Random(seed)
    pool = made_pool((2, 8, 2, 8, 4), device, torch.float32)
    expected = pool.clone()
    moves = [BlockMove("copy", 0, choice.randrange(8), choice.randrange(1, 8)) for _ in range(24)]
    for move in moves:
        expected[:, move.target] = expected[:, move.source]
    for batch in batches(moves, max_moves=6):
        sources, targets = ([getattr(move, end) for move in batch] for end in ("source", "target"))
        copy(pool, numbers(*sources, device=device), numbers(*targets, device=device))
    assert torch.equal(pool, expected)


def test_what_is_too_large_is_refused_by_name() -> None:
    assert unsupported(64, 256, "int8", CPU) == ""
    sentence = "block_copy converts vectors of up to 16384 values per block, not 128 tokens of 256"
    assert unsupported(128, 256, "int8", CPU) == sentence


@pytest.mark.parametrize(("capability", "has"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((12, 0), True)])
def test_fp8_is_left_to_others_on_gpus_without_it(capability: tuple[int, int], has: bool) -> None:
    with assumed(*capability):
        assert (unsupported(16, 128, "fp8", CPU) == "") is has
        assert unsupported(16, 128, "int8", CPU) == ""
