"""A latent vector and the rotated key behind it have a scale each on their way, in whatever pool they land."""

import pytest
import torch
from msgspec import structs
from torch import Tensor

from contracts.kv.spec import SCALE_BYTES, PayloadConversion, WireForm
from engine.backends.reference.mover import ReferenceMover
from engine.device import DTYPES_BY_NAME, dtype_name
from engine.kv.pool import KVPool
from engine.kv.spec import make_spec
from engine.model.config import LatentAttention, LayerConfig
from engine.model.rope import Rope
from kernels.block_copy import CodecName, reference_encode
from tests.engine.configs import dense
from tests.engine.kv.test_codec import BLOCK_CODECS, CODECS, CPU, DECODERS, ENCODERS, bits

LATENT, KEY = 21, 6
PARTS = (LATENT, KEY)
"""Rows that end within a vector of every processor, and within a word."""
ATTENTION = LatentAttention(
    heads=4, query_rank=0, latent_rank=LATENT, rope_dim=KEY, nope_dim=4, value_dim=4, scale=0.5, rope=Rope(dim=KEY)
)
CONFIG = structs.replace(dense(1), layers=(LayerConfig(ATTENTION, dense().layers[0].mlp),))
KEY_MAGNIFICATION = 16  # times as large as a latent vector are keys


def drawn(blocks: int, block: int, dtype: torch.dtype) -> Tensor:
    """Draws `[blocks, 1, block, width]` with keys that are many times as large as what stands before them."""
    layer = torch.randn((blocks, 1, block, LATENT + KEY), generator=torch.Generator().manual_seed(3))
    layer[..., LATENT:] *= KEY_MAGNIFICATION
    return layer.to(dtype)


def made_pool(dtype: torch.dtype, block: int, block_codec: str) -> KVPool:
    """Makes a pool of one layer of latent vectors, which are as `drawn`."""
    pool = KVPool(make_spec(CONFIG, dtype, block, "w"), [12], CPU, ReferenceMover(), BLOCK_CODECS[block_codec])
    pool.layers[0][1:] = drawn(11, block, dtype)
    return pool


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_codec_makes_of_parts_what_the_kernels_reference_makes(encoder: str, codec: CodecName) -> None:
    """To the bit: the scales of a vector's parts, and the values in their places."""
    block_codec, dtype = ENCODERS[encoder]
    layer, blocks = drawn(5, 16, dtype), torch.tensor([4, 0, 2])
    layer[2, 0, 3, 2], layer[2, 0, 4, LATENT] = float("nan"), float("inf")
    found = block_codec.encode(layer, blocks, codec, PARTS)
    values, scales = reference_encode(layer, blocks, codec, PARTS)
    split = len(PARTS) * SCALE_BYTES
    assert found.shape == (3, split + 16 * (LATENT + KEY))
    assert torch.equal(found[:, :split].contiguous().view(torch.float32), scales.flatten(1))
    assert torch.equal(found[:, split:], values.view(torch.uint8).flatten(1))


@pytest.mark.parametrize("block_codec", DECODERS)
@pytest.mark.parametrize("dtype", DTYPES_BY_NAME.values(), ids=DTYPES_BY_NAME)
@pytest.mark.parametrize("codec", CODECS)
def test_what_a_codec_costs_is_bounded_by_each_part(codec: CodecName, dtype: torch.dtype, block_codec: str) -> None:
    """The bounds are `test_codec.test_what_a_codec_costs_is_bounded`'s, with the largest number of the part alone."""
    here, there = made_pool(dtype, 16, block_codec), made_pool(dtype, 16, block_codec)
    there.layers[0][1:] = 0
    table = list(range(1, 12))
    there.convert(
        PayloadConversion(WireForm(dtype_name(dtype), 16, codec), 0, 0, table, 0, 0), here.read(0, 0, table, codec)
    )
    for part in (slice(0, LATENT), slice(LATENT, None)):
        before, after = (pool.layers[0][1:, ..., part].double() for pool in (here, there))
        scale = before.abs().amax((-1, -2), keepdim=True) / (127 if codec == "int8" else 448)
        bound = scale / 2 if codec == "int8" else torch.maximum(before.abs() / 16, scale / 1024)
        own = after.abs() * torch.finfo(dtype).eps / 2 + before.abs() * 2.0**-22 + torch.finfo(dtype).smallest_normal
        assert (after - before).abs().le(bound + own).all()
        assert (after - before).abs().max() > 0


@pytest.mark.parametrize("block_codec", DECODERS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("source", "target"), [(16, 8), (8, 32)])
def test_parts_land_in_blocks_of_another_size(source: int, target: int, codec: CodecName, block_codec: str) -> None:
    """Runs of tokens begin and end within blocks of both; every other byte stays."""
    sender, receiver = made_pool(torch.bfloat16, source, block_codec), made_pool(torch.float32, target, block_codec)
    sent, first, held = [7, 2, 9], source, source + 5
    table = [3, 8, 1, 6, 10, 5, 2, 11][: 4 * source // target] if source > target else [4]
    expected = receiver.layers[0].clone()
    values, scales = reference_encode(sender.layers[0], torch.tensor(sent), codec, PARTS)
    rows = values.float() * scales.repeat_interleave(torch.tensor(PARTS), -1)[:, :, None]
    for token, row in enumerate(rows.movedim(2, 1).flatten(0, 1), first):
        if token >= held and token // target < len(table):
            expected[table[token // target], :, token % target] = row
    piece = PayloadConversion(WireForm("bf16", source, codec), 0, 0, table, first, held)
    receiver.convert(piece, sender.read(0, 0, sent, codec))
    assert torch.equal(bits(receiver.layers[0]), bits(expected))


def test_a_block_on_its_way_has_a_scale_for_each_part() -> None:
    group = make_spec(CONFIG, torch.bfloat16, 16, "w").groups[0]
    assert group.parts == PARTS
    assert group.wire_bytes("int8", "bf16") == 16 * (LATENT + KEY) + 2 * SCALE_BYTES
    pool = made_pool(torch.bfloat16, 16, "native")
    assert sum(len(part) for part in pool.read(0, 0, [3, 4], "int8")) == 2 * group.wire_bytes("int8", "bf16")
