"""`torch.distributed` between processes: the same sums, columns and tensors as over shared memory, by gloo on CPUs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.parallel.distributed import FEW_BYTES
from engine.parallel.shard import Shard
from engine.parallel.sums import tree_sum

ROOT = Path(__file__).resolve().parents[3]
WIDTH = 24
ROWS = {"few": 3, "many": FEW_BYTES // (2 * WIDTH) + 1, "none": 0}
FORMATS = (torch.float32, torch.bfloat16)
OF_RANKS = """
import os, sys
from pathlib import Path
import torch
from engine.parallel.distributed import DistributedCollective, MeetingFile
from engine.parallel.shard import Shard
from tests.engine.parallel.test_distributed import FORMATS, ROWS, columns_of, given_by, widths_of
ranks, directory = int(sys.argv[1]), Path(sys.argv[2])
# Each rank is a fork, which need not import PyTorch again.
others = []
for rank in range(1, ranks):
    if (process := os.fork()) == 0:
        others.clear()
        break
    others.append(process)
else:
    rank = 0
collective = DistributedCollective(Shard(rank, ranks), MeetingFile(str(directory / "meeting"), "gloo"))
found = {}
for name in ROWS:
    for dtype in FORMATS:
        found["sum", name, dtype] = collective.all_reduce(given_by(rank, name, dtype))
    found["gather", name] = collective.all_gather(columns_of(rank, ranks, name), widths_of(ranks))
    found["broadcast", name] = collective.broadcast(given_by(rank, name, torch.float32))
collective.barrier()
collective.close()
collective = DistributedCollective(Shard(rank, ranks), MeetingFile(str(directory / "again"), "gloo", False))
for name in ROWS:
    for dtype in FORMATS:
        found["own sum", name, dtype] = collective.all_reduce(given_by(rank, name, dtype))
collective.close()
torch.save(found, directory / f"{rank}.pt")
assert all(os.waitpid(process, 0)[1] == 0 for process in others)
"""

ALONE = """
import sys
from pathlib import Path
from engine.parallel.distributed import DistributedCollective, MeetingFile
from engine.parallel.shard import Shard
DistributedCollective(Shard(0, 2), MeetingFile(str(Path(sys.argv[1]) / "meeting"), "gloo"), silence_s=0.2)
"""


def given_by(rank: int, rows: str, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn((ROWS[rows], WIDTH), generator=generator).to(dtype)


def widths_of(ranks: int) -> list[int]:
    return Shard(0, ranks).lengths(WIDTH - 3)  # uneven


def columns_of(rank: int, ranks: int, rows: str) -> torch.Tensor:
    return given_by(0, rows, torch.float32)[:, Shard(rank, ranks).part(WIDTH - 3)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_gets_what_all_ranks_have_given(ranks: int, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", OF_RANKS, str(ranks), str(tmp_path)], cwd=ROOT, check=True)
    first = torch.load(tmp_path / "0.pt")
    for rank in range(ranks):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name in ROWS:
            for dtype in FORMATS:
                given = [given_by(each, name, dtype).float() for each in range(ranks)]
                assert found["sum", name, dtype].equal(tree_sum(given).to(dtype)), (name, dtype)
                own = found["own sum", name, dtype]  # by gloo's ring, which rounds between ranks; all ranks agree
                torch.testing.assert_close(
                    own.float(), tree_sum(given), rtol=0, atol=0.1 if dtype.itemsize == 2 else 1e-5
                )
                assert own.equal(first["own sum", name, dtype]), (name, dtype)
            assert found["gather", name].equal(given_by(0, name, torch.float32)[:, : WIDTH - 3])
            assert found["broadcast", name].equal(given_by(0, name, torch.float32))
        many = found["own sum", "many", torch.bfloat16], found["sum", "many", torch.bfloat16]
        assert ranks == 2 or not torch.equal(*many), "an order was not asked for"


def test_a_rank_that_does_not_come_is_a_sentence(tmp_path: Path) -> None:
    """In its own process: after a group that could not begin, PyTorch gives a process's later groups other names."""
    ended = subprocess.run([sys.executable, "-c", ALONE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    said = ended.stderr.splitlines()[-1]
    assert said.startswith("contracts.errors.RankError: the ranks of this worker cannot exchange tensors: ")
