"""A prefill worker writes into the pools of all ranks of a decode worker on a CPU: each rank gets its part."""

import socket

import pytest
import torch
import zmq.asyncio

from contracts.errors import MessageError
from contracts.messages.handoff import Layer, decode_layer
from engine.backends.reference.codec import ReferenceCodec
from engine.backends.reference.mover import ReferenceMover
from engine.kv.pool import KVPool
from engine.kv.rank_pools import RankPools
from engine.kv.spec import make_spec
from engine.model.sharding import shard_config
from engine.parallel.shard import Shard
from kvtransfer.digest import payload_digest
from kvtransfer.transports.pool.channel import PoolChannel
from kvtransfer.transports.pool.writers import PoolWriters
from tests.engine.kv.test_rank_pools import BLOCK_COUNT, SOURCES, TARGETS, WHOLE, config_of, make_pool
from tests.kvtransfer.pair import until

LAYER = 1


def shared_pools(name: str, ranks: int) -> RankPools:
    config, pools = config_of(name), []
    for rank in range(ranks):
        spec = make_spec(shard_config(config, Shard(rank, ranks)), torch.float32, 8, "w")
        device = torch.device("cpu")
        pools.append(KVPool(spec, [BLOCK_COUNT], device, ReferenceMover(), ReferenceCodec(), is_shared=True))
    return RankPools(pools, make_spec(config, torch.float32, 8, "w"))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", WHOLE)
async def test_every_rank_gets_its_part_of_what_another_process_writes(name: str, ranks: int) -> None:
    source, target = make_pool(config_of(name), 8, seed=1), shared_pools(name, ranks)
    context = zmq.asyncio.Context()
    here, there = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    here.bind("inproc://control")
    there.connect("inproc://control")
    gone: list[bytes] = []
    writers = PoolWriters(target.spec, target, gone.append)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    channel = PoolChannel(ours, target.spec, target.counts, here, 1 << 20)
    channel.watch(lambda: None)
    writers.take(b"link", theirs.fileno())
    theirs.close()
    await until(lambda: channel.is_open, "the memory does not come")
    views = source.read(0, LAYER, SOURCES)
    size = sum(map(len, views))
    header = Layer(
        sender="p",
        receiver="d",
        handoff=1,
        number=0,
        group=0,
        layer=LAYER,
        first=0,
        count=len(SOURCES),
        offset=0,
        size=size,
    )
    sent = channel.send(header, views, TARGETS)
    assert sent is not None and decode_layer((await there.recv_multipart())[0]) == header
    landed = target.landed(0, LAYER, TARGETS)
    assert b"".join(landed) == b"".join(views)
    assert sent.digest == payload_digest(0, LAYER, 0, landed)
    assert b"".join(target.begin_read(0, LAYER, TARGETS)()) == b"".join(views)
    for pool in target._pools:
        others = [block for block in range(BLOCK_COUNT) if block not in TARGETS]
        assert not pool.layers[LAYER][others].any() and not pool.layers[0].any()
    if name in ("1 KV head", "latent"):  # which all ranks hold
        target._pools[-1].layers[LAYER][TARGETS[0]] += 1
        with pytest.raises(MessageError, match="other bytes"):
            target.landed(0, LAYER, TARGETS)
    channel.close()
    await until(lambda: gone == [b"link"], "the writer stays")
    writers.close()
    for each in (here, there):
        each.close(0)
    context.term()
