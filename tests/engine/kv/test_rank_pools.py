"""All ranks' pools are read and written as the blocks of a worker of one rank, byte for byte."""

from functools import partial

import pytest
import torch
from msgspec import structs

from contracts.errors import MessageError
from contracts.kinds import Codec, KVDtype
from contracts.kv.spec import PayloadConversion
from engine.backends.reference.codec import ReferenceCodec
from engine.backends.reference.mover import ReferenceMover
from engine.kv.pool import KVPool
from engine.kv.rank_pools import RankPools
from engine.kv.spec import make_spec
from engine.model.config import DenseMLP, HeadAttention, LatentAttention, LayerConfig, ModelConfig
from engine.model.rope import Rope
from engine.model.sharding import shard_config
from engine.parallel.shard import Shard
from tests.engine.configs import attention, dense

BLOCK_COUNT = 12
SOURCES, TARGETS = [3, 4, 5, 9, 2], [7, 1, 2, 3, 11]
WHOLE: dict[str, HeadAttention | LatentAttention] = {
    "4 KV heads": attention(4, 4, 4),
    "2 KV heads": attention(4, 2, 4),
    "1 KV head": attention(4, 1, 4),
    "latent": LatentAttention(
        heads=4, query_rank=0, latent_rank=12, rope_dim=4, nope_dim=4, value_dim=4, scale=1.0, rope=Rope(dim=4)
    ),
}


def config_of(name: str) -> ModelConfig:
    layer = LayerConfig(WHOLE[name], DenseMLP(intermediate=8))
    return structs.replace(dense(), layers=(layer,) * 3)


def make_pool(config: ModelConfig, block_tokens: int, kv_dtype: KVDtype = "auto", seed: int | None = None) -> KVPool:
    spec = make_spec(config, torch.float32, block_tokens, "w", kv_dtype)
    pool = KVPool(spec, [BLOCK_COUNT], torch.device("cpu"), ReferenceMover(), ReferenceCodec())
    if seed is not None:
        for number, layer in enumerate(pool.layers):
            values = torch.randn(layer[1:].shape, generator=torch.Generator().manual_seed(seed + number))
            layer[1:] = values.to(layer.dtype)
    return pool


def cut(whole: KVPool, config: ModelConfig, ranks: int, block_tokens: int, kv_dtype: KVDtype = "auto") -> RankPools:
    """Returns pools of ranks with the whole pool's values."""
    pools = []
    for rank in range(ranks):
        pool = make_pool(shard_config(config, Shard(rank, ranks)), block_tokens, kv_dtype)
        for number, layer in enumerate(pool.layers):
            attention = config.layers[number].attention
            heads = slice(0, 1)
            if isinstance(attention, HeadAttention):
                own = Shard(rank, ranks).kv_heads(attention.kv_heads)
                heads = slice(2 * own.start, 2 * own.stop)
            layer.view(torch.uint8)[:] = whole.layers[number].view(torch.uint8)[:, heads]
        pools.append(pool)
    return RankPools(pools, whole.spec)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("codec", ["none", "int8", "fp8"])
def test_what_ranks_hold_is_read_as_whole_blocks(name: str, ranks: int, codec: Codec) -> None:
    config = config_of(name)
    whole = make_pool(config, 8, seed=1)
    ranked = cut(whole, config, ranks, 8)
    for layer in range(len(whole.layers)):
        found = b"".join(ranked.begin_read(0, layer, SOURCES, codec)())
        assert found == b"".join(whole.read(0, layer, SOURCES, codec))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "fp8"])
def test_whole_blocks_land_in_the_parts_of_all_ranks(name: str, ranks: int, kv_dtype: KVDtype) -> None:
    config = config_of(name)
    sent, whole = make_pool(config, 8, kv_dtype, seed=1), make_pool(config, 8, kv_dtype, seed=50)
    ranked = cut(whole, config, ranks, 8, kv_dtype)
    for layer in range(len(whole.layers)):
        payload = b"".join(sent.read(0, layer, SOURCES))
        ranked.write(0, layer, TARGETS, [payload[:5], memoryview(payload)[5:700], payload[700:]])
        whole.write(0, layer, TARGETS, [payload])
    assert_equal(ranked, cut(whole, config, ranks, 8, kv_dtype))
    with pytest.raises(MessageError, match="a payload of 7 bytes for 1 blocks"):
        ranked.write(0, 0, [1], [b"1234567"])


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("codec", ["none", "int8", "fp8"])
def test_blocks_in_another_form_are_converted_on_every_rank(name: str, ranks: int, codec: Codec) -> None:
    config = config_of(name)
    sent, whole = make_pool(config, 16, seed=1), make_pool(config, 8, seed=50)
    ranked = cut(whole, config, ranks, 8)
    place = partial(PayloadConversion, sent.spec.form(codec), 0, blocks=TARGETS[:4], first=0, held=3)
    for layer in range(len(whole.layers)):
        payload = b"".join(sent.read(0, layer, SOURCES[:2], codec))
        ranked.convert(place(layer=layer), [payload])
        whole.convert(place(layer=layer), [payload])
    assert_equal(ranked, cut(whole, config, ranks, 8))
    with pytest.raises(MessageError, match="a payload of 7 bytes, which is not in blocks"):
        ranked.convert(place(layer=0), [b"1234567"])


def assert_equal(found: RankPools, expected: RankPools) -> None:
    for layer in range(len(found._pools[0].layers)):
        for ours, theirs in zip(found._pools, expected._pools, strict=True):
            assert torch.equal(ours.layers[layer].view(torch.uint8), theirs.layers[layer].view(torch.uint8))
