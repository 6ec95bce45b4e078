"""Ranks on the GPUs of one host exchange tensors by NCCL, in the order of the current stream; recordings contain it.

NCCL's own sums have an order that depends on the size of a message, and round to the numbers' format between ranks.
Deterministic sums are made here:

    sum of n numbers by R ranks:  few numbers    all ranks gather all numbers, and each rank adds them
                                  many numbers   each rank gets n / R numbers of every rank, adds them, and gathers sums

Both ways add in fp32, in the tree of `engine.parallel.sums`, and round once. So a row's sum has the same bits whatever
other rows a step has. The second way moves 2 (R - 1) / R n numbers to each rank, as many as NCCL's ring does; the first
one (R - 1) n, in one operation instead of two.

PyTorch's symmetric memory has sums in one operation over peer memory, in the order of ranks. They are not used: its
rendezvous refuses ranks whose GPUs have the same number, as here, where each rank sees one GPU.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from msgspec import Struct
from torch import Tensor

from contracts.errors import RankError
from engine.parallel.rank_group import NoSharedBuffers
from engine.parallel.shard import Shard
from engine.parallel.sums import tree_sum

FEW_BYTES = 1 << 19
"""Maximum bytes of a tensor that all ranks gather: 32 rows of 8,192 values in bf16."""
SILENCE_S = 600.0
"""Seconds for all ranks to begin an exchange: at a start, one may compile kernels that the others do not have."""
LOOPBACK_VARIABLE, LOOPBACK_INTERFACE = "NCCL_SOCKET_IFNAME", "lo"
"""Ranks find each other over this interface, unless the user names another: it is closed to other hosts."""


ALL_GATHER: Callable[[Tensor, Tensor], object]
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # as PyTorch called it before 2.13
DistributedBackend = Literal["nccl", "gloo"]
"""NCCL exchanges tensors of GPUs, gloo those of CPUs."""


class MeetingFile(Struct, frozen=True):
    """How ranks find each other: by a file that does not exist before."""

    path: str
    backend: DistributedBackend
    deterministic: bool = True  # else sums are the backend's own


class DistributedCollective(NoSharedBuffers):
    """Sums, gathers and broadcasts tensors of one device: with NCCL of this process's first GPU."""

    def __init__(self, shard: Shard, meeting: MeetingFile, silence_s: float = SILENCE_S) -> None:
        """Waits for all ranks. Raises `RankError` if one does not come within `silence_s` seconds."""
        os.environ.setdefault(LOOPBACK_VARIABLE, LOOPBACK_INTERFACE)
        self._shard = shard
        self._deterministic = meeting.deterministic
        self._token = torch.zeros(1, dtype=torch.uint8, device="cuda" if meeting.backend == "nccl" else "cpu")
        untyped: Any = dist  # the package does not export its stores to type checkers
        store = untyped.FileStore(meeting.path, shard.ranks)
        with _exchanging():
            dist.init_process_group(
                meeting.backend,
                store=store,
                rank=shard.rank,
                world_size=shard.ranks,
                timeout=timedelta(seconds=silence_s),
            )

    def all_reduce(self, own: Tensor) -> Tensor:
        if not self._deterministic:
            total = own.contiguous()
            with _exchanging():
                dist.all_reduce(total)
            return total
        ranks, flat = self._shard.ranks, own.reshape(-1)
        if own.nbytes <= FEW_BYTES or own.numel() % ranks:
            return self._added(self._gathered(flat).view(ranks, -1), own.dtype).view(own.shape)
        received = torch.empty_like(flat)
        with _exchanging():
            dist.all_to_all_single(received, flat)
        return self._gathered(self._added(received.view(ranks, -1), own.dtype)).view(own.shape)

    def all_gather(self, own: Tensor, widths: Sequence[int]) -> Tensor:
        rows, most = len(own), max(widths)
        padded = own.contiguous() if own.shape[1] == most else own.new_zeros((rows, most))
        if own.shape[1] != most:
            padded[:, : own.shape[1]] = own
        found = self._gathered(padded.view(-1)).view(self._shard.ranks, rows, most)
        return torch.cat([columns[:, :width] for columns, width in zip(found, widths, strict=True)], 1)

    def broadcast(self, tensor: Tensor) -> Tensor:
        received = tensor.contiguous()
        with _exchanging():
            dist.broadcast(received, 0)
        return received

    def barrier(self) -> None:
        self._gathered(self._token)

    def close(self) -> None:
        dist.destroy_process_group()

    def _gathered(self, own: Tensor) -> Tensor:
        """Returns the values of all ranks, rank 0's first."""
        found = own.new_empty(self._shard.ranks * own.numel())
        with _exchanging():
            ALL_GATHER(found, own)
        return found

    @staticmethod
    def _added(parts: Tensor, dtype: torch.dtype) -> Tensor:
        return tree_sum(parts.float().unbind()).to(dtype)


@contextmanager
def _exchanging() -> Iterator[None]:
    """Turns the errors of `torch.distributed`, some of which are plain `RuntimeError`s, into a `RankError`."""
    try:
        yield
    except RuntimeError as error:
        raise RankError(
            f"the ranks of this worker cannot exchange tensors: {str(error).partition(chr(10))[0]}"
        ) from error
