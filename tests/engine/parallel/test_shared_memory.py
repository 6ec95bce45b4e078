"""Ranks exchange tensors through shared memory; a rank that dies or hangs is named at once, or after the silence."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from contracts.errors import RankError
from engine.parallel.rank_group import RankGroup
from engine.parallel.shard import Shard
from engine.parallel.shared_memory import SLOT_BYTES, SharedMemoryCollective, make_wires
from engine.parallel.sums import tree_sum
from tests.engine.parallel.threads import over_shared_memory

LARGE = SLOT_BYTES // 4 + 1_000
"""Values of fp32 that take more than one exchange."""


def drawn(rank: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_sum_is_the_tree_of_all_ranks_in_fp32(ranks: int, dtype: torch.dtype) -> None:
    """Many sums in a row: a rank that is ahead overwrites nothing that another still reads."""
    shapes = [(3, 5), (1,), (7, 0), (LARGE,), *[(2, 3)] * 200]

    def sums(group: RankGroup) -> list[Tensor]:
        return [group.collective.all_reduce(drawn(group.shard.rank, *shape).to(dtype)) for shape in shapes]

    expected = [
        tree_sum([drawn(rank, *shape).to(dtype).float() for rank in range(ranks)]).to(dtype) for shape in shapes
    ]
    for found in over_shared_memory(ranks, sums):
        assert all(own.dtype == dtype and own.equal(right) for own, right in zip(found, expected, strict=True))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_read_parts_in_each_others_rooms(ranks: int) -> None:
    """Between other exchanges, many times: a rank that is ahead writes into no room that another still reads."""

    def sums(group: RankGroup) -> list[Tensor]:
        found = []
        for turn in range(200):
            room = group.collective.shared_buffer(7)
            assert room is not None
            room.copy_(drawn(group.shard.rank + turn, 7))
            found.append(tree_sum(group.collective.shared_parts(7)).clone())
            if turn % 3 == 0:
                group.collective.barrier()
        assert group.collective.shared_buffer(LARGE) is None
        return found

    expected = [tree_sum([drawn(rank + turn, 7) for rank in range(ranks)]) for turn in range(200)]
    for found in over_shared_memory(ranks, sums):
        assert all(map(torch.equal, found, expected))


def test_columns_of_uneven_widths_are_gathered() -> None:
    widths, rows = [300, 299, 0, 301], 3_000

    def gathered(group: RankGroup) -> Tensor:
        return group.collective.all_gather(drawn(group.shard.rank, rows, widths[group.shard.rank]), widths)

    expected = torch.cat([drawn(rank, rows, width) for rank, width in enumerate(widths)], 1)
    assert all(found.equal(expected) for found in over_shared_memory(4, gathered))


@pytest.mark.parametrize("count", [0, 3, LARGE])
def test_everybody_receives_what_rank_0_has(count: int) -> None:
    def received(group: RankGroup) -> Tensor:
        return group.collective.broadcast(torch.arange(count) + group.shard.rank)

    assert all(found.equal(torch.arange(count)) for found in over_shared_memory(4, received))


def test_a_rank_that_hangs_is_named() -> None:
    wires = make_wires(2)
    collective, silent = (SharedMemoryCollective(Shard(rank, 2), wires[rank], silence_s=0.2) for rank in range(2))
    with pytest.raises(RankError, match=r"rank 1 has sent nothing for 0\.2 s"):
        collective.all_reduce(torch.ones(1))
    collective.close()
    silent.close()


@pytest.mark.parametrize("sent", [b"", b"\0"], ids=["before its part", "behind its part"])
def test_a_rank_that_is_killed_is_named_at_once(sent: bytes) -> None:
    wires = make_wires(2)
    (other,) = wires[1].sockets.values()
    waits = f"import os, signal; os.write({other}, {sent!r}); print('ready', flush=True); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", waits], pass_fds=[other], stdout=subprocess.PIPE)
    os.close(other)
    os.close(wires[1].memory)
    collective = SharedMemoryCollective(Shard(0, 2), wires[0])
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with pytest.raises(RankError, match="rank 1 has ended"):
        for _ in range(2):
            collective.all_reduce(torch.ones(1))
    collective.close()
