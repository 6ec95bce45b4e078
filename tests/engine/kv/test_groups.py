"""A pool of several groups: layers that store alike share one, and whatever is done to one leaves the others alone."""

import mmap

import pytest
import torch
from msgspec import structs
from torch import Tensor

from contracts.kinds import Codec
from contracts.kv.spec import PayloadConversion, WireForm
from engine.backends.native.codec import NativeCodec
from engine.backends.native.library import load
from engine.backends.reference.codec import ReferenceCodec
from engine.backends.reference.mover import ReferenceMover
from engine.backends.triton.mover import TritonMover
from engine.kv.codec import BlockCodec
from engine.kv.mover import BlockMover
from engine.kv.pool import KVPool
from engine.kv.spec import make_spec
from engine.model.config import LatentAttention, LayerConfig
from engine.model.kv_layout import groups_of_layers
from engine.model.rope import Rope
from engine.plan import BlockMove
from tests.engine.configs import attention, dense

FULL, WIDE, WINDOW = attention(4, 2, 4), attention(4, 1, 6, window=9), attention(4, 2, 4, window=9)
LATENT = LatentAttention(
    heads=4, query_rank=0, latent_rank=12, rope_dim=4, nope_dim=4, value_dim=4, scale=0.5, rope=Rope(dim=4)
)
LAYERS = (WINDOW, FULL, LATENT, WIDE, WINDOW, FULL)
GROUPS = ((1, 5), (2,), (0, 4), (3,))
CONFIG = structs.replace(dense(), layers=tuple(LayerConfig(each, dense().layers[0].mlp) for each in LAYERS))
COUNTS = (12, 7, 5, 9)
CPU = torch.device("cpu")
CODECS: dict[str, BlockCodec] = {"native": NativeCodec(load()), "torch": ReferenceCodec()}


def make_pool(
    seed: int, *, dtype: torch.dtype = torch.bfloat16, block: int = 8, codec: str = "native", mover: BlockMover
) -> KVPool:
    pool = KVPool(make_spec(CONFIG, dtype, block, "w"), COUNTS, CPU, mover, CODECS[codec])
    generator = torch.Generator().manual_seed(seed)
    for layer in pool.layers:
        layer[1:] = torch.randn(layer[1:].shape, generator=generator).to(dtype)
    return pool


def test_layers_that_store_alike_and_see_as_far_are_a_group() -> None:
    spec = make_spec(CONFIG, torch.bfloat16, 8, "w")
    assert tuple(group.layers for group in spec.groups) == GROUPS
    assert spec.groups_of_layers() == groups_of_layers(LAYERS) == (2, 0, 1, 3, 2, 0)
    kinds = [(group.kind, group.window, group.vectors, group.width("bf16")) for group in spec.groups]
    assert kinds == [("full", 0, 4, 4), ("latent", 0, 1, 16), ("window", 9, 4, 4), ("window", 9, 2, 6)]
    assert [group.block_bytes for group in spec.groups] == [2 * 8 * values for values in (16, 16, 16, 12)]
    other = structs.replace(CONFIG, layers=CONFIG.layers[::-1])
    assert make_spec(other, torch.bfloat16, 8, "w").content() != spec.content()


def test_a_latent_vector_is_all_that_a_token_takes() -> None:
    config = structs.replace(CONFIG, layers=(CONFIG.layers[2],) * 3)
    assert make_spec(config, torch.bfloat16, 16, "w").token_bytes() == (12 + 4) * 3 * 2


def copies(pool: KVPool) -> list[Tensor]:
    return [layer.clone() for layer in pool.layers]


def only(before: list[Tensor], after: list[Tensor], changed: int) -> bool:
    return all(torch.equal(*pair) for at, pair in enumerate(zip(before, after, strict=True)) if at != changed)


@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_what_is_read_of_a_layer_lands_in_that_layer_alone(layer: int) -> None:
    group = groups_of_layers(LAYERS)[layer]
    last = COUNTS[group] - 1
    source, target = (make_pool(seed, mover=ReferenceMover()) for seed in (1, 2))
    assert source.layers[layer].shape[0] == COUNTS[group] and source.layers[layer].is_contiguous()
    before = copies(target)
    target.write(group, layer, [last, 1], source.read(group, layer, [2, last]))
    assert torch.equal(target.layers[layer][[last, 1]], source.layers[layer][[2, last]])
    assert torch.equal(target.layers[layer][2:last], before[layer][2:last])
    assert only(before, target.layers, layer)
    for wrong in {*range(len(GROUPS))} - {group}:
        with pytest.raises(AssertionError, match=f"no layer {layer} in group {wrong}"):
            source.read(wrong, layer, [1])
    with pytest.raises(AssertionError, match=f"beyond the group's {COUNTS[group]}"):
        source.read(group, layer, [last + 1])


@pytest.mark.parametrize("codec", ["none", "int8", "fp8"])
@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("layer", [1, 2, 3])
def test_each_layout_is_converted(layer: int, name: str, codec: Codec) -> None:
    """From blocks of 8 in bf16 to blocks of 16 in fp32; a byte stands for a value within half a step of its vector."""
    group = groups_of_layers(LAYERS)[layer]
    source = make_pool(1, codec=name, mover=ReferenceMover())
    target = make_pool(2, dtype=torch.float32, block=16, codec=name, mover=ReferenceMover())
    before, sent = copies(target), source.layers[layer][[3, 1]]
    payload = source.read(group, layer, [3, 1], codec)
    assert sum(view.nbytes for view in payload) == 2 * source.spec.groups[group].wire_bytes(codec, "bf16")
    target.convert(PayloadConversion(WireForm("bf16", 8, codec), group, layer, [2], 0, 0), payload)
    found = target.layers[layer][2].unflatten(1, (2, 8)).transpose(0, 1)  # [blocks, vectors, 8, width]
    largest = sent.float().abs().amax((-1, -2), keepdim=True)
    step = {"none": torch.zeros(1), "int8": largest / 254, "fp8": largest / 28}[codec]  # fp8: 448 has neighbours of 32
    assert ((found - sent.float()).abs() <= step * 1.001).all()
    assert only(before, target.layers, layer)


@pytest.mark.parametrize("mover", [ReferenceMover(), TritonMover()], ids=["torch", "triton"])
def test_a_block_is_moved_in_the_layers_of_its_group_alone(mover: BlockMover) -> None:
    pool = make_pool(1, mover=mover)
    for number, layers in enumerate(GROUPS):
        before = copies(pool)
        pool.move([BlockMove("copy", number, 1, 3), BlockMove("copy", number, 3, 4)])
        for layer, (old, new) in enumerate(zip(before, pool.layers, strict=True)):
            expected = old.clone()
            if layer in layers:
                expected[[3, 4]] = old[1]
            assert torch.equal(new, expected)


def test_every_group_begins_at_a_page() -> None:
    pool = make_pool(1, mover=ReferenceMover())
    assert all(pool.layers[layers[0]].data_ptr() % mmap.PAGESIZE == 0 for layers in GROUPS)
