"""Blocks pass from GPU to GPU between workers of any widths: every rank has its part, and digests are equal."""

from typing import get_args

import pytest
import torch

from contracts.errors import RankError
from contracts.kinds import KVDtype
from engine.backends.reference.codec import ReferenceCodec
from engine.backends.reference.mover import ReferenceMover
from engine.kv.gpu.device_digest import DeviceDigest
from engine.kv.gpu.device_pools import DevicePools
from engine.kv.pool import KVPool
from engine.kv.rank_pools import RankPools
from engine.kv.spec import make_spec
from engine.model.sharding import shard_config
from engine.parallel.shard import Shard
from tests.engine.kv.peer_memory import shared_on_device
from tests.engine.kv.test_rank_pools import BLOCK_COUNT, SOURCES, TARGETS, WHOLE, config_of
from tests.engine.simulated_device import CUDA
from tests.engine.simulated_torch import simulated_device

WIDTHS = [(1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (4, 2)]


def pools_of(name: str, ranks: int, kv_dtype: KVDtype = "auto") -> tuple[RankPools, DevicePools]:
    config = config_of(name)
    pools: list[KVPool] = []
    for rank in range(ranks):
        spec = make_spec(shard_config(config, Shard(rank, ranks)), torch.float32, 8, "w", kv_dtype)
        own = pools[0] if pools else None
        pools.append(KVPool(spec, [BLOCK_COUNT], CUDA, ReferenceMover(), ReferenceCodec(), own=own))
    whole = RankPools(pools, make_spec(config, torch.float32, 8, "w", kv_dtype))
    assert whole.devices is not None
    return whole, whole.devices


def digest_of(found: DeviceDigest) -> int:
    looks = [found.done, found.done]
    assert looks == [False, True], "the host waits"
    return found.digest


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_every_rank_gets_its_part_and_digests_are_equal(name: str, widths: tuple[int, int]) -> None:
    check(name, widths, "auto")


@pytest.mark.parametrize("kv_dtype", [each for each in get_args(KVDtype) if each != "auto"])
def test_quantized_blocks_pass_as_they_lie(kv_dtype: KVDtype) -> None:
    check("4 KV heads", (4, 2), kv_dtype)


def check(name: str, widths: tuple[int, int], kv_dtype: KVDtype) -> None:
    with simulated_device() as device, shared_on_device():
        device.looks = 2
        (source, senders), (target, receivers) = (pools_of(name, width, kv_dtype) for width in widths)
        group = source.spec.groups[0]
        for layer in group.layers:
            content = torch.randint(0, 256, (len(SOURCES) * group.block_bytes,), dtype=torch.uint8)
            source.write(0, layer, SOURCES, [content.numpy().tobytes()])
        before = b"".join(target.begin_read(0, 1, list(range(1, BLOCK_COUNT)))())
        peer = senders.opened(receivers.offered(), target.counts)
        digests = [digest_of(peer.write(0, 1, first, SOURCES[first:], TARGETS[first:])) for first in (2, 0)]
        assert digests[0] != digests[1]
        assert digests == [digest_of(receivers.landed(0, 1, first, TARGETS[first:])) for first in (2, 0)]
        assert digests[1] != digest_of(receivers.landed(0, 1, 0, TARGETS[1:] + TARGETS[:1]))
        sent, landed = (
            b"".join(pools.begin_read(0, 1, own)()) for pools, own in ((source, SOURCES), (target, TARGETS))
        )
        assert landed == sent != bytes(len(sent))
        others = [block for block in range(1, BLOCK_COUNT) if block not in TARGETS]
        assert not any(b"".join(target.begin_read(0, 1, others)())) and not any(before)
        assert not any(b"".join(target.begin_read(0, 0, TARGETS)())), "another layer was written"
        for pool in target._pools:
            assert not pool.layers[1][0].any(), "the null block was written"
    assert device.races == []


def test_pools_that_no_gpu_reaches_or_of_other_groups_are_refused() -> None:
    with simulated_device(), shared_on_device(reached=False):
        pools, devices = pools_of("latent", 1)
        with pytest.raises(RankError, match="no way"):
            devices.opened(devices.offered(), pools.counts)
        with pytest.raises(RankError, match="other KV groups"):
            devices.opened(devices.offered(), (BLOCK_COUNT, BLOCK_COUNT))
        with pytest.raises(RankError, match="described badly"):
            devices.opened(b"\x90", pools.counts)
